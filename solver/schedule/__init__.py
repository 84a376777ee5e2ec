"""Which decisions give the least makespan within a memory budget."""
