-- SPDX-License-Identifier: Apache-2.0
-- Take waiting requests.
-- ARGV: worker, role, card, lease_ms, timeout_ms, num_slots, nonce (random, for the epochs).
-- Returns for each: request, epoch, payload, deliveries, then each choice's tokens (or false) and
-- offer.
local worker, role, slots = ARGV[1], ARGV[2], tonumber(ARGV[6])
meet(worker, role, ARGV[3], tonumber(ARGV[5]))
sweep()
local leases = {}

local function take(request, payload, num_choices)
  local m = key('m', request)
  local epoch = ARGV[7] .. '-' .. #leases
  redis.call('HSET', m, 'epoch', epoch, 'worker', worker)
  redis.call('ZADD', one('leases'), now + tonumber(ARGV[4]), request)
  redis.call('SADD', key('l', worker), request)
  local lease = {request, epoch, payload, redis.call('HINCRBY', m, 'deliveries', 1)}
  for choice = 0, num_choices - 1 do
    local tokens = false
    if redis.call('HEXISTS', m, 'e' .. choice) == 0 then
      tokens = redis.call('GET', key('t', choice .. ':' .. request)) or ''
    end
    lease[5 + 2 * choice] = tokens
    lease[6 + 2 * choice] = redis.call('HGET', m, 'o' .. choice) or ''
    redis.call('HDEL', m, 'o' .. choice)
  end
  leases[#leases + 1] = lease
end

local queues = {role == 'decode' and 'decode' or 'prefill'}
if role == 'mixed' and not is_alive('decode') then queues = {'decode', 'prefill'} end

-- The first of the waiting requests that this worker may take, and its queue.
local function first()
  for _, queue in ipairs(queues) do
    local place = redis.call('ZRANGE', key('q', queue), 0, 0)[1]
    if place then return place, queue end
  end
end

while slots > 0 do
  local place, queue = first()
  if not place then break end
  redis.call('ZREM', key('q', queue), place)
  local request = string.sub(place, 17)
  local f = redis.call('HMGET', key('m', request), 'payload', 'n', 'open')
  -- A server that drops keys may have dropped this one; then nobody can serve the request.
  if f[1] then
    take(request, f[1], f[2])
    slots = slots - f[3]
  end
end
return leases
