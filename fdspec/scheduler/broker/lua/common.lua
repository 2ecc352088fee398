-- SPDX-License-Identifier: Apache-2.0
-- Stands before every verb: the keys of a topic, and what is done when a time has run out. The rules
-- are those of TopicBook (book.py). Commands of Redis 6.2 only.
--
-- KEYS[1] is the prefix P of all keys of the topic; times are milliseconds by the server's clock.
--   P m:<request>      hash: queue frontend payload n attempt priority place open deliveries below,
--                      and epoch worker while it is leased, cancelled, e<choice> for ended choices,
--                      o<choice> for offers; only `attempt` is left after the end
--   P t:<choice>:<request>   output tokens so far, 4 bytes each, little-endian
--   P q:<queue>        sorted set of waiting requests: priority -> place (16 hex digits, request)
--   P leases, P deadlines    sorted sets: when a request's lease ends, when it expires -> request
--   P l:<worker>, P o:<frontend>   sets of requests: leased by a worker, owned by a frontend
--   P workers:<role>, P frontends  sorted sets: until when somebody counts as alive -> who
--   P cards            hash: worker -> what it says of itself
--   P r:<frontend>     stream of results
--   P bell:<queue>     list that wakes workers which wait
--   P dead             stream of requests that were given up

local MAX_DELIVERIES = 3
local MEMORY_MS = 60000
local ROLES = {'mixed', 'prefill', 'decode'}
local QUEUES = {'prefill', 'decode'}
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function key(kind, id)
  return KEYS[1] .. kind .. ':' .. id
end
local function one(kind)
  return KEYS[1] .. kind
end

local function due(set)
  return redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, 1000)
end

-- An entry of the frontend's result stream: a payload ('p') or a failure ('f').
local function post(frontend, request, attempt, kind, value)
  local stream = key('r', frontend)
  redis.call('XADD', stream, '*', 'r', request, 'a', attempt, kind, value)
  redis.call('PEXPIRE', stream, MEMORY_MS)
end

-- Forget everything of a request but its last attempt.
local function finish(request)
  local m = key('m', request)
  local f = redis.call('HMGET', m, 'queue', 'frontend', 'place', 'worker', 'n', 'attempt')
  if not f[1] then return end
  redis.call('ZREM', key('q', f[1]), f[3])
  redis.call('ZREM', one('leases'), request)
  redis.call('ZREM', one('deadlines'), request)
  redis.call('SREM', key('o', f[2]), request)
  if f[4] then redis.call('SREM', key('l', f[4]), request) end
  for choice = 0, f[5] - 1 do
    redis.call('DEL', key('t', choice .. ':' .. request))
  end
  redis.call('DEL', m)
  redis.call('HSET', m, 'attempt', f[6])
  redis.call('PEXPIRE', m, MEMORY_MS)
end

local function fail(request, code)
  local f = redis.call('HMGET', key('m', request), 'frontend', 'attempt')
  if f[1] then
    post(f[1], request, f[2], 'f', code)
    finish(request)
  end
end

local function is_alive(role)
  return redis.call('ZCARD', key('workers', role)) > 0
end

-- Where a request waits if nobody has its KV cache.
local function start_queue(request, num_choices, below)
  local most = 0
  for choice = 0, num_choices - 1 do
    if redis.call('HEXISTS', key('m', request), 'e' .. choice) == 0 then
      most = math.max(most, redis.call('STRLEN', key('t', choice .. ':' .. request)) / 4)
    end
  end
  return most < tonumber(below) and 'decode' or 'prefill'
end

-- A request waits; its lease, if it had one, has ended.
local function wait(request, queue)
  local m = key('m', request)
  local f = redis.call('HMGET', m, 'priority', 'place', 'worker')
  if f[3] then
    redis.call('HDEL', m, 'epoch', 'worker')
    redis.call('ZREM', one('leases'), request)
    redis.call('SREM', key('l', f[3]), request)
  end
  redis.call('HSET', m, 'queue', queue)
  redis.call('ZADD', key('q', queue), f[1], f[2])
  local bell = key('bell', queue)
  redis.call('LPUSH', bell, 1)
  redis.call('LTRIM', bell, 0, 63)
  redis.call('PEXPIRE', bell, MEMORY_MS)
end

-- A leased request goes back to its place in the queue; or it ends.
local function give_back(request, is_fault)
  local m = key('m', request)
  local f = redis.call('HMGET', m, 'worker', 'deliveries', 'cancelled', 'frontend', 'n', 'below')
  if not f[1] then return end
  local deliveries = tonumber(f[2])
  if f[3] then
    finish(request)
  elseif is_fault and deliveries >= MAX_DELIVERIES then
    redis.call('XADD', one('dead'), 'MAXLEN', 1000, '*', 'request', request, 'frontend', f[4],
      'worker', f[1])
    fail(request, 'dead_letter')
  else
    if not is_fault then redis.call('HSET', m, 'deliveries', math.max(deliveries - 1, 0)) end
    -- What some choices were handed over for is worth nothing without the others.
    for choice = 0, f[5] - 1 do redis.call('HDEL', m, 'o' .. choice) end
    wait(request, start_queue(request, f[5], f[6]))
  end
end

local function cancel(request)
  local m = key('m', request)
  if redis.call('HEXISTS', m, 'epoch') == 1 then
    redis.call('HSET', m, 'cancelled', 1)
  else
    finish(request)
  end
end

local function holds(request, epoch)
  return redis.call('HGET', key('m', request), 'epoch') == epoch
end

-- A worker's sign of life.
local function meet(worker, role, card, timeout_ms)
  redis.call('ZADD', key('workers', role), now + timeout_ms, worker)
  redis.call('HSET', one('cards'), worker, card)
end

-- A worker is not alive any more: its requests go on elsewhere.
local function dismiss(worker, role, is_fault)
  for _, request in ipairs(redis.call('SMEMBERS', key('l', worker))) do
    give_back(request, is_fault)
  end
  redis.call('DEL', key('l', worker))
  redis.call('HDEL', one('cards'), worker)
  redis.call('ZREM', key('workers', role), worker)
end

local function sweep()
  for _, role in ipairs(ROLES) do
    for _, worker in ipairs(due(key('workers', role))) do dismiss(worker, role, true) end
  end
  for _, request in ipairs(due(one('deadlines'))) do fail(request, 'expired') end
  for _, request in ipairs(due(one('leases'))) do give_back(request, true) end
  for _, frontend in ipairs(due(one('frontends'))) do
    for _, request in ipairs(redis.call('SMEMBERS', key('o', frontend))) do cancel(request) end
    redis.call('DEL', key('r', frontend))
    redis.call('ZREM', one('frontends'), frontend)
  end
end
