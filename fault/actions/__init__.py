"""The actions, each an `Action` of some file here; `fault.registry` finds it."""
