# SPDX-License-Identifier: Apache-2.0
"""What serving a target takes of a device's memory, before anything is loaded."""
