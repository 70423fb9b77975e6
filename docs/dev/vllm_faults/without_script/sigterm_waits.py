"""SIGTERM waits for clients.

Kind: explains an observation.
Met by: servers that are stopped in mid-answer.
Symptom: The server waits until open streams end. The engine goes at once.
Cause: `entrypoints/launchers/launcher.py`, `serve_http` returns uvicorn's `server.shutdown()`, which
  waits for open connections.
Releases: 0.32 (run) and 0.33 (by reading).
No script: it needs a server; `pytest tests/e2e/test_faults.py -m long` has
  `test_sigterm_gives_answers_up`.
Workaround: None: `--shutdown-timeout 60` ends answers first (docs/deploy.md).
Remedy: `--shutdown-timeout 60` ends answers first.
Can go when: Open streams are ended when the engine goes.
"""
