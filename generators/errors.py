"""The two ways a generator can fail, each with one line for the user's eyes."""


class GeneratorError(Exception):
    """The generator could not do its work (broker, gate, or a process that died)."""


class InputError(GeneratorError):
    """The specification or the corpus is wrong; nothing was sent, and trying again cannot help."""
