"""A server whose engine died ends with status 0.

Kind: explains an observation.
Met by: any server.
Symptom: Requests get status 500, and the server exits with 0.
Cause: `entrypoints/launchers/launcher.py`, `terminate_if_errored` asks uvicorn to exit as if by itself.
Releases: 0.32 (run) and 0.33 (by reading; a new condition may keep the server alive).
No script: it needs a server; `pytest tests/e2e/test_faults.py -m long -s` prints the status.
Workaround: None: supervise `/health`, or restart always (docs/deploy.md).
Remedy: supervise `/health`, or restart always.
Can go when: The exit status tells of the engine's error.
"""
