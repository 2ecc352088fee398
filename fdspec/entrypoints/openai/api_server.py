# SPDX-License-Identifier: Apache-2.0
"""FastDeploy's path to the server: another name of the module `fdspec.entrypoints.api_server`."""

import sys

from fdspec.entrypoints import api_server

if __name__ == "__main__":
    sys.exit(api_server.main())
sys.modules[__name__] = api_server
