-- SPDX-License-Identifier: Apache-2.0
-- A worker ends. ARGV: worker, role.
sweep()
dismiss(ARGV[1], ARGV[2], false)
return 0
