"""Deaths at random moments: no accepted request is lost, each gets one result, no process stays behind."""
