"""Takes requests from lanes, keeps an engine busy, reports what happened."""
