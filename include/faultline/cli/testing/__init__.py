"""The test suite: its layers, and what it needs beside the project itself."""
