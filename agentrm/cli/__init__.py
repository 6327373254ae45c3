"""The command `agentrm`: one module per subcommand, loaded when it is asked for."""
