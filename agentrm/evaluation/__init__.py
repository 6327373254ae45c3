"""What does compaction keep, measured on conversations and trajectories that were not made for it?"""
