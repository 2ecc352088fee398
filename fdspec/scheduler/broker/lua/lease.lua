-- SPDX-License-Identifier: Apache-2.0
-- Take waiting requests.
-- ARGV: worker, role, card, lease_ms, timeout_ms, num_slots, nonce (random, for the epochs).
-- Returns for each: request, epoch, payload, deliveries, then each choice's tokens or false.
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
    if redis.call('HEXISTS', m, 'e' .. choice) == 1 then
      lease[5 + choice] = false
    else
      lease[5 + choice] = redis.call('GET', key('t', choice .. ':' .. request)) or ''
    end
  end
  leases[#leases + 1] = lease
end

while slots > 0 do
  local place = redis.call('ZRANGE', key('q', role), 0, 0)[1]
  if not place then break end
  redis.call('ZREM', key('q', role), place)
  local request = string.sub(place, 17)
  local f = redis.call('HMGET', key('m', request), 'payload', 'n', 'open')
  -- A server that drops keys may have dropped this one; then nobody can serve the request.
  if f[1] then
    take(request, f[1], f[2])
    slots = slots - f[3]
  end
end
return leases
