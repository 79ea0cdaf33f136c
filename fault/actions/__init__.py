"""One file an action. Each holds an `ACTION`; `fault.registry` finds it by its file."""
