"""`busway bench`: a load on any server that speaks OpenAI's API, and what its clients would have seen.

`plan.Plan` says what to ask, `drive.run(plan)` asks and returns a `result.Result`.
"""
