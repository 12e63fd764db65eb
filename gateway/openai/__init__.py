"""The only place that speaks OpenAI."""
