-- SPDX-License-Identifier: Apache-2.0
-- The topic now: waiting requests of each queue, leased requests, frontends, dead letters, and for
-- each living worker its card and how many requests it holds.
sweep()
local waiting, workers = {}, {}
for _, queue in ipairs(QUEUES) do
  waiting[#waiting + 1] = redis.call('ZCARD', key('q', queue))
end
for _, role in ipairs(ROLES) do
  for _, worker in ipairs(redis.call('ZRANGE', key('workers', role), 0, -1)) do
    local card = redis.call('HGET', one('cards'), worker)
    if card then workers[#workers + 1] = {card, redis.call('SCARD', key('l', worker))} end
  end
end
return {waiting, redis.call('ZCARD', one('leases')), redis.call('ZCARD', one('frontends')),
  redis.call('XLEN', one('dead')), workers}
