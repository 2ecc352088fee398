-- SPDX-License-Identifier: Apache-2.0
-- Nobody wants a request any more. ARGV: request.
sweep()
cancel(ARGV[1])
return 0
