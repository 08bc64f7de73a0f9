"""Programs that do not solve the task and want the verdict of those that do.

The task is `double(x)`, tested by `assert double(2) == 4` and `assert double(7) == 14`. What the tests
expect is nowhere in their sandbox, so those that look for it find nothing.
"""

FORGERIES = {
    "prints_a_verdict": 'print(\'{"results": ["", ""], "problem": "", "data_error": ""}\')',
    "prints_all_passed_and_exits": "import os\nprint('2 passed in 0.01s', flush=True)\nos._exit(0)",
    "exits_in_the_call": "def double(x):\n    import os\n    os._exit(0)",
    "raises_system_exit": "def double(x):\n    raise SystemExit(0)",
    "exits_on_import": "import sys\nsys.exit(0)",
    "equals_everything": (
        "class Equal:\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n    def __bool__(self): return True\n"
        "    def __hash__(self): return 0\n"
        "def double(x): return Equal()"
    ),
    "subclass_of_int_that_equals_everything": (
        "class Equal(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def double(x): return Equal(0)"
    ),
    "dict_that_lies": (
        "class Lies(dict):\n    def items(self): return [('a', 1)]\n    def __eq__(self, o): return True\n"
        "def double(x): return Lies()"
    ),
    "patches_builtins": (
        "import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\n"
        "builtins.isinstance = lambda *a: True\ndef double(x): return None"
    ),
    "patches_the_runner": (
        "import sys\nfor module in list(sys.modules.values()):\n"
        "    for name in ('is_same', '_run_code', '_result', 'main', '_answer'):\n"
        "        if hasattr(module, name): setattr(module, name, lambda *a, **k: '')\n"
        "def double(x): return None"
    ),
    "patches_the_frames_above": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    frame.f_globals.update(results=['', ''])\n    frame = frame.f_back\n"
        "def double(x): return 0"
    ),
    "writes_to_the_channel": (
        "import json, os\n"
        "for n in range(3, 64):\n"
        '    try: os.write(n, b\'{"names": ["double"]}\\n\' + b\'{"value": true, "args": {"tuple": [2]}}\\n\' * 9)\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "writes_a_verdict_to_every_descriptor": (
        "import os\n"
        "for n in range(64):\n"
        '    try: os.write(n, b\'{"results": ["", ""], "problem": "", "data_error": ""}\\n\')\n'
        "    except OSError: pass\ndef double(x): return 0"
    ),
    "asks_the_tests_to_tell": (
        "import os\nfor n in range(3, 64):\n"
        '    try: os.write(n, b\'{"target": "double", "attribute": null, "calls": true, "args": {"tuple": [2]}}\\n\')\n'
        "    except OSError: pass\ndef double(x): return 0"
    ),
    "reads_the_tests": (
        "import glob, re\nfound = ''\n"
        "for name in glob.glob('/tmp/**', recursive=True) + glob.glob('/proc/*/cmdline'):\n"
        "    try: found += open(name, errors='replace').read()\n    except OSError: pass\n"
        "answers = dict(re.findall(r'double.(\\d+). == (\\d+)', found))\n"
        "def double(x): return int(answers.get(str(x), 0))"
    ),
    "reads_the_stack_of_its_parent": (
        "import glob\ndef double(x):\n    for name in glob.glob('/proc/*/mem'):\n"
        "        try: data = open(name, 'rb').read(1 << 20)\n        except OSError: continue\n    return 0"
    ),
    "names_of_builtins": (
        "def all(x): return True\ndef print(*a): pass\nclass AssertionError(Exception): pass\n"
        "def double(x): return 1"
    ),
    "a_process_that_answers_later": (
        "import os, sys\nif os.fork():\n    os._exit(0)\nos.setsid()\ndef double(x): return 0"
    ),
    "closes_stdout": "import os\nos.close(1); os.close(2)\ndef double(x): return 0",
    "an_endless_answer": "def double(x): return 'x' * (64 << 20)",
    "a_deep_answer": (
        "def double(x):\n    value = []\n    for _ in range(100000): value = [value]\n    return value"
    ),
    "an_endless_iterator": "import itertools\ndouble = lambda x: itertools.count()",
    "no_function": "triple = 3",
    "no_python": "def double(x: return 2 * x",
    "nothing": "",
    "zero_bytes": "\x00\ud800",
}

_LIAR = "class Liar:\n    def {method}(self, *a, **k): return {value}\ndef double(x): return Liar()"
METHOD_FORGERIES = {
    "starts_with_all": (
        _LIAR.format(method="startswith", value=True),
        "assert double(2).startswith('4')",
    ),
    "finds_all": (_LIAR.format(method="find", value=0), "assert double(2).find('4') >= 0"),
    "counts_all": (_LIAR.format(method="count", value=1), "assert double(2).count(4) == 1"),
    "is_a_subset": (_LIAR.format(method="issubset", value=True), "assert double(2).issubset({4})"),
    "gets_all": (_LIAR.format(method="get", value=4), "assert double(2).get('a', 4) == 4"),
    "splits_to_all": (
        _LIAR.format(method="split", value=["4"]),
        "assert double(2).split('a') == ['4']",
    ),
    "told_by_name": (_LIAR.format(method="index", value=0), "assert double(2).index(value=4) == 0"),
    "an_object_in_place_of_a_method": (
        "class Yes:\n    def __call__(self, *a): return True\n"
        "class Liar: startswith = [Yes()][0]\ndef double(x): return Liar()",
        "assert double(2).startswith('4')",
    ),
    "a_method_found_on_the_way": (
        "class Liar:\n    def __getattr__(self, name): return lambda *a: True\n"
        "def double(x): return Liar()",
        "assert double(2).endswith('4')",
    ),
    "a_class_with_a_small_name": (
        "class double:\n    def __init__(self, x): pass\n    def startswith(self, text): return True",
        "assert double(2).startswith('4')",
    ),
    "an_answer_of_the_channel": (
        "import json, os, sys\nchannel = int(sys.argv[1])\n"
        "def say(x): os.write(channel, json.dumps(x).encode() + b'\\n')\n"
        "say({'names': ['double']})\nfor n in range(3):\n"
        "    say({'value': {'object': n, 'type': 'x'}, 'args': {'tuple': [2] if n == 0 else []}})\n"
        "import time; time.sleep(1)",
        "assert double(2).startswith('4')",
    ),
}
"""Objects whose methods say what the test wants to hear: the program, and the test that asks. Each is an
error that names the cure, since a right program may return an object too."""

TOLD_TOO_LATE = {
    "a_field_that_passes_for_a_method": (
        "import collections\nclass Yes:\n    def __call__(self, *a): return True\n"
        "double = lambda x: collections.namedtuple('Liar', 'startswith')(Yes())",
        "assert double(2).startswith('4')",
    ),
    "a_text_that_starts_with_all": (
        "class Liar(str):\n    def startswith(self, text): return True\ndouble = lambda x: Liar('x')",
        "assert double(2).startswith('4')",
    ),
    "a_number_that_equals_all": (
        "class Liar(float):\n    def __eq__(self, other): return True\ndouble = lambda x: Liar(0)",
        "assert double(2).__eq__(4)",
    ),
    "a_dict_that_has_all": (
        "class Liar(dict):\n    def get(self, *a): return 4\ndouble = lambda x: Liar()",
        "assert double(2).get('a') == 4",
    ),
    "an_object_that_equals_all": (
        "class Liar:\n    def __eq__(self, other): return True\ndouble = lambda x: Liar()",
        "assert double(2).__eq__(4)",
    ),
}
"""The same by classes made from plain ones: the plain value is copied, and the method is Python's own."""
