"""The upstream engine: answers of any server that speaks OpenAI."""
