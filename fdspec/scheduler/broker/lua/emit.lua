-- SPDX-License-Identifier: Apache-2.0
-- Hand tokens over.
-- ARGV: request, epoch, choice, index, tokens, is_last, payload, offer of each emission.

-- True if every choice that has not ended has an offer.
local function is_handed_over(m, num_choices)
  for choice = 0, num_choices - 1 do
    if redis.call('HEXISTS', m, 'e' .. choice) + redis.call('HEXISTS', m, 'o' .. choice) == 0 then
      return false
    end
  end
  return true
end

local function take(request, epoch, choice, index, tokens, is_last, payload, offer)
  if not holds(request, epoch) then return 'fenced' end
  local m = key('m', request)
  local f = redis.call('HMGET', m, 'cancelled', 'e' .. choice, 'frontend', 'attempt', 'n')
  if f[1] then
    finish(request)
    return 'cancelled'
  end
  local t = key('t', choice .. ':' .. request)
  local held = redis.call('STRLEN', t) / 4
  local has_more = is_last or offer ~= ''
  if f[2] or (not has_more and index + #tokens / 4 <= held) then return 'duplicate' end
  if index ~= held then
    give_back(request, false)
    return 'fenced'
  end
  if tokens ~= '' then redis.call('APPEND', t, tokens) end
  if tokens ~= '' or is_last then redis.call('HSET', m, 'deliveries', 0) end
  if offer ~= '' then redis.call('HSET', m, 'o' .. choice, offer) end
  if payload ~= '' then post(f[3], request, f[4], 'p', payload) end
  if is_last then
    redis.call('HSET', m, 'e' .. choice, 1)
    if redis.call('HINCRBY', m, 'open', -1) == 0 then
      finish(request)
      return 'accepted'
    end
  end
  if is_handed_over(m, f[5]) then
    if tokens == '' and not is_last then redis.call('HINCRBY', m, 'deliveries', -1) end
    wait(request, 'decode')
  end
  return 'accepted'
end

sweep()
local outcomes = {}
for i = 1, #ARGV, 8 do
  outcomes[#outcomes + 1] = take(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]),
    ARGV[i + 4], ARGV[i + 5] == '1', ARGV[i + 6], ARGV[i + 7])
end
return outcomes
