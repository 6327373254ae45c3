"""Agentic programs: what they hold on the engines that serve them, and when each may go on."""
