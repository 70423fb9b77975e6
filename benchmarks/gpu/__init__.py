# SPDX-License-Identifier: Apache-2.0
"""What a GPU says of this package's claims: `python -m benchmarks.gpu OUT --minutes 12`."""
