-- SPDX-License-Identifier: Apache-2.0
-- Keep leases. ARGV: worker, role, card, lease_ms, timeout_ms, then request and epoch of each.
meet(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5]))
sweep()
local states = {}
for i = 6, #ARGV, 2 do
  local request = ARGV[i]
  local state = 'lost'
  if holds(request, ARGV[i + 1]) then
    if redis.call('HEXISTS', key('m', request), 'cancelled') == 1 then
      finish(request)
      state = 'cancelled'
    else
      redis.call('ZADD', one('leases'), now + tonumber(ARGV[4]), request)
      state = 'held'
    end
  end
  states[#states + 1] = state
end
return states
