-- SPDX-License-Identifier: Apache-2.0
-- Give requests back. ARGV: is_fault, then request and epoch of each.
sweep()
for i = 2, #ARGV, 2 do
  if holds(ARGV[i], ARGV[i + 1]) then give_back(ARGV[i], ARGV[1] == '1') end
end
return 0
