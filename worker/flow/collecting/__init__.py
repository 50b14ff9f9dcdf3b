"""The parts of the step `collect_evidence`: one collector a process, its open calls, what is settled of their answers."""
