-- SPDX-License-Identifier: Apache-2.0
-- Hand tokens over. ARGV: request, epoch, choice, index, tokens, is_last, payload of each emission.
local function take(request, epoch, choice, index, tokens, is_last, payload)
  if not holds(request, epoch) then return 'fenced' end
  local m = key('m', request)
  local f = redis.call('HMGET', m, 'cancelled', 'e' .. choice, 'frontend', 'attempt')
  if f[1] then
    finish(request)
    return 'cancelled'
  end
  local t = key('t', choice .. ':' .. request)
  local held = redis.call('STRLEN', t) / 4
  if f[2] or (not is_last and index + #tokens / 4 <= held) then return 'duplicate' end
  if index ~= held then
    give_back(request, false)
    return 'fenced'
  end
  if tokens ~= '' then redis.call('APPEND', t, tokens) end
  redis.call('HSET', m, 'deliveries', 0)
  post(f[3], request, f[4], 'p', payload)
  if is_last then
    redis.call('HSET', m, 'e' .. choice, 1)
    if redis.call('HINCRBY', m, 'open', -1) == 0 then finish(request) end
  end
  return 'accepted'
end

sweep()
local outcomes = {}
for i = 1, #ARGV, 7 do
  outcomes[#outcomes + 1] = take(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]),
    ARGV[i + 4], ARGV[i + 5] == '1', ARGV[i + 6])
end
return outcomes
