-- SPDX-License-Identifier: Apache-2.0
-- Take waiting requests.
-- ARGV: worker, role, card, lease_ms, timeout_ms, num_slots, nonce (random, for the epochs).
-- Returns for each: request, epoch, payload, deliveries, then each choice's tokens or false.
local worker, role, slots = ARGV[1], ARGV[2], tonumber(ARGV[6])
meet(worker, role, ARGV[3], tonumber(ARGV[5]))
sweep()
local leases = {}
while slots > 0 do
  local place = redis.call('ZRANGE', key('q', role), 0, 0)[1]
  if not place then break end
  local request = string.sub(place, 17)
  local m = key('m', request)
  local epoch = ARGV[7] .. '-' .. #leases
  redis.call('ZREM', key('q', role), place)
  redis.call('HSET', m, 'epoch', epoch, 'worker', worker)
  redis.call('ZADD', one('leases'), now + tonumber(ARGV[4]), request)
  redis.call('SADD', key('l', worker), request)
  local deliveries = redis.call('HINCRBY', m, 'deliveries', 1)
  local f = redis.call('HMGET', m, 'payload', 'n', 'open')
  local lease = {request, epoch, f[1], deliveries}
  for choice = 0, f[2] - 1 do
    if redis.call('HEXISTS', m, 'e' .. choice) == 1 then
      lease[5 + choice] = false
    else
      lease[5 + choice] = redis.call('GET', key('t', choice .. ':' .. request)) or ''
    end
  end
  leases[#leases + 1] = lease
  slots = slots - f[3]
end
return leases
