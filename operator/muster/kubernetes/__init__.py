"""A small controller runtime on asyncio: the API server of Kubernetes, and what a controller needs around it. It knows no TrainingJob.

It promises:

- `api_server.py`: one client. Answers are bounded, redirects are not followed, names are checked before they become paths
  (`api_paths.py`), and every failure is a `ClusterError` (`errors.py`).
- `watches.py`: every change to the watched objects, in order, whatever happens to the stream. A possible gap is reported, and
  `resync.py` then lists everything again.
- `store.py`: the newest version of each object. What was deleted stays deleted, and a write that no watch delivers is noticed.
- `election.py`: at most one leader writes at any time, even if clocks differ.
- `queue.py`: each due key gets one pass at a time. Failed keys back off (`backoff.py`), and namespaces take turns (`fairness.py`).
- `event_recorder.py` and `token_bucket.py`: Events and rate limits that never delay the work.

Nothing here is imported from the rest of Muster, and import-linter checks this.
"""
