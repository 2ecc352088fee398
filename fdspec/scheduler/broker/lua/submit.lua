-- SPDX-License-Identifier: Apache-2.0
-- Queue a request.
-- ARGV: request, frontend, payload, n, attempt, below, priority, ttl_ms, max_waiting, needs_worker,
--       then the tokens so far of each choice, or 'ended' (whose length is no multiple of 4).
local request, frontend, attempt = ARGV[1], ARGV[2], tonumber(ARGV[5])
local m = key('m', request)
sweep()
local last = redis.call('HGET', m, 'attempt')
if last and attempt <= tonumber(last) then return 'duplicate' end
local most = 0
for i = 11, #ARGV do
  if ARGV[i] ~= 'ended' then most = math.max(most, #ARGV[i] / 4) end
end
local queue = most < tonumber(ARGV[6]) and 'decode' or 'prefill'
local is_served = is_alive('mixed') or
  (is_alive('decode') and (queue == 'decode' or is_alive('prefill')))
if ARGV[10] == '1' and not is_served then return 'no_worker' end
local limit = tonumber(ARGV[9])
if attempt == 0 and limit > 0 and redis.call('ZCARD', key('q', queue)) >= limit then
  return 'busy'
end
if last then finish(request) end
local place = string.format('%016x', redis.call('INCR', one('arrivals'))) .. request
local deadline = now + tonumber(ARGV[8])
local open = 0
redis.call('DEL', m)
for choice = 0, ARGV[4] - 1 do
  local tokens = ARGV[11 + choice]
  if tokens == 'ended' then
    redis.call('HSET', m, 'e' .. choice, 1)
  else
    open = open + 1
    if tokens ~= '' then redis.call('SET', key('t', choice .. ':' .. request), tokens) end
  end
end
redis.call('HSET', m, 'below', ARGV[6], 'frontend', frontend, 'payload', ARGV[3], 'n', ARGV[4],
  'attempt', attempt, 'priority', ARGV[7], 'place', place, 'open', open, 'deliveries', 0)
redis.call('ZADD', one('deadlines'), deadline, request)
redis.call('SADD', key('o', frontend), request)
wait(request, queue)
return 'queued'
