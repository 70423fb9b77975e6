# SPDX-License-Identifier: Apache-2.0
"""Plans what serving a target takes of a device's memory, before anything is loaded."""
