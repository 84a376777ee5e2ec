"""Is the server alive, is it ready, what has it done."""
