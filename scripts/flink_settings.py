"""Write `known_settings.json` of the Flink engine: the settings that the installed Flink declares.

    ./.faultline/venv/bin/python -P scripts/flink_settings.py

Flink declares its settings in classes named `…Options`; their names are texts in the constant pools of these classes.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterator

from faultline.engines.flink.conf_rules import KNOWN_SETTINGS_FILE
from faultline.engines.flink.distribution import VERSION, FlinkDistribution
from faultline.system.settings import load_settings

_OPTIONS = re.compile(r"org/apache/flink/.*Options(\$\w+)?\.class")
_SETTING = re.compile(r"(?!(?:org|java|com|ch)\.)[a-z][a-z0-9-]*(\.[a-zA-Z0-9-]+)+")
# Sizes in bytes of the entries of a constant pool, by tag, except texts (Java Virtual Machine Specification, 4.4).
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_TEXT, _LONG = 1, (5, 6)


def texts(content: bytes) -> Iterator[str]:
    """Yield the texts in the constant pool of a class file."""
    (count,) = struct.unpack(">H", content[8:10])
    at, number = 10, 1
    while number < count:
        tag = content[at]
        if tag == _TEXT:
            (length,) = struct.unpack(">H", content[at + 1 : at + 3])
            yield content[at + 3 : at + 3 + length].decode(errors="replace")
            at += 3 + length
        else:
            at += 1 + _SIZES[tag]
        number += 2 if tag in _LONG else 1


def main() -> None:
    settings = load_settings()
    found: set[str] = set()
    for jar in FlinkDistribution(settings.home, settings.root).libraries.glob("*.jar"):
        with zipfile.ZipFile(jar) as files:
            for name in files.namelist():
                if _OPTIONS.fullmatch(name):
                    found.update(one for one in texts(files.read(name)) if _SETTING.fullmatch(one))
    content = {"flink": VERSION, "settings": sorted(found)}
    KNOWN_SETTINGS_FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
