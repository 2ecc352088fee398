-- SPDX-License-Identifier: Apache-2.0
-- A frontend's sign of life. ARGV: frontend, cursor (results up to it have been read), lease_ms.
-- Returns 1 if the frontend was not known.
sweep()
local frontend = ARGV[1]
local is_new = redis.call('ZADD', one('frontends'), now + tonumber(ARGV[3]), frontend)
local stream = key('r', frontend)
if is_new == 0 and ARGV[2] ~= '' then
  local number = string.match(ARGV[2], '-(%d+)$') + 1
  redis.call('XTRIM', stream, 'MINID', string.match(ARGV[2], '^(%d+)') .. '-' .. number)
end
return is_new
