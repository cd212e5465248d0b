"""Configs that nobody would write: drawn from the schema, then damaged. All of it follows from a ``random.Random``."""

import json
import typing

from mixprec.app.config import Config
from mixprec.app.config.yaml_source import read_value
from mixprec.base.declaration import keys, sections

KEYS = keys(Config)
REQUIRED = {"model.arch": "resnet8", "model.classes": 10, "data.train": "t", "data.val": "v", "optimizer.lr": 0.5}
REQUIRED |= {"training.batch_size": 32, "training.epochs": 90}
_NUMBERS = """
0 -0 1 -1 2 8 0.5 1e-3 65536 2147483647 2147483648 -2147483649 4294967296 9007199254740993 1e308 1e309 -1e999 5e-324
1e-400 1e99999999999 .inf -.INF .nan NaN inf 0x10 010 0b1 1_000 1:30 +1 1. .5 . + 1e
"""
NUMBERS = [*_NUMBERS.split(), *(400 * "9", "-" + 400 * "9", 4301 * "9", 3000 * "1" + "x", f"0.{3000 * '0'}1", "\u0661")]
_TEXTS = """
null ~ true yes off '' [] {} [1] {a:1} - ? @ ` . .. *a &a %YAML !x 2024-01-01 /dev/zero /proc/self/mem
auto cpu gpu:1 float16 nhwc synthetic list LARS step
"""
TEXTS = [
    *_TEXTS.split(),
    *("' '", "[1, 2, 3]", "[[1], 2]", "{a: 1}", "- 1", "? a", "a: b: c", "'1 epoch'", "3 iterations", "0 epochs"),
    *("!!int 1", "!!python/object/apply:os.system [ls]", "!<\x1b> a", "&a 1", "&a [*a]", "<<: {a: 1}", "| \n a"),
    *('"\\0"', '"\\n\\r\\e[31m"', '"\\ud800"', '"\\U00110000"', '"\\x85\\u2028"', "ü 数 😀", "'a\n\nb'"),
    *(5000 * "x", '"' + 3000 * "\\n" + '"', "\ufeff"),
]
CHARACTERS = "\0\x01\t\n\r\x1b\x7f\x85\xa0\u2028\ud800\udcff\ufeff\ufffe😀:-?[]{}&*!|>'\"%@`#,=~ 0a"
LINES = [
    "---",
    "...",
    "%YAML 2.0",
    "%TAG ! tag:x,2000:",
    "a: &a [*a]",
    "<<: *a",
    "- a",
    "\t",
    "model:",
    "data: {",
    "]",
    "# x",
]


def config(random):
    """Returns a damaged config: its text as bytes, and its overrides."""
    values = {name: _quoted(value) for name, value in REQUIRED.items()}
    for name in random.sample(list(KEYS), random.randrange(6)):
        values[name] = _usual(random, KEYS[name])
    if random.random() < 0.3:
        return _written(random, values).encode(), []
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        values[random.choice(list(values))] = _odd(random)
    if random.random() < 0.1:
        values.pop(random.choice(list(values)))
    text = _written(random, values)
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        text = random.choice(DAMAGES)(random, text)
    return _encoded(random, text), [override(random) for _ in range(random.choice((0, 0, 1, 1, 2)))]


def _quoted(value):
    return json.dumps(value)


def _usual(random, key):
    """A value of the right type, and mostly one that is allowed."""
    for _ in range(4):
        text = _of_type(random, key)
        try:
            key.convert(read_value(key.name, text, "").value())
        except ValueError:
            continue
        break
    return text


def _of_type(random, key):
    if key.choices:
        return random.choice(key.choices)
    if typing.get_origin(key.type) is tuple:
        numbers = sorted(random.choice((0.1, 0.5, 1, 30, 60.5)) for _ in range(random.choice((2, 3, 3, 3))))
        return f"[{', '.join(map(str, numbers))}]"
    kinds = typing.get_args(key.type) or (key.type,)
    if not key.required and random.random() < 0.3:
        return _quoted(key.default)
    if bool in kinds:
        return random.choice(("true", "false"))
    if int in kinds:
        return str(random.choice((1, 2, 3, 8, 16, 100, 1000, random.randrange(1 << 31))))
    if float in kinds:
        return repr(random.choice((0.5, 1, 2.0, 1024.0, 0.125, 1e-3, random.random(), 10 ** random.uniform(-11, 5))))
    return random.choice(("2 epochs", "7 iterations", "cpu", "some/path", '"\u00fc \\u2028 \\ud800"'))


def _odd(random):
    return random.choice(random.choice((NUMBERS, TEXTS)))


def _written(random, values):
    """Sections as blocks or in braces; keys of a section that is no mapping are lost."""
    lines, flow = [], random.random() < 0.3
    names = list(sections(Config))
    random.shuffle(names)
    for section in names:
        inside = {name.partition(".")[2]: text for name, text in values.items() if name.startswith(f"{section}.")}
        if not inside:
            continue
        if flow:
            lines.append(f"{section}: {{{', '.join(f'{key}: {text}' for key, text in inside.items())}}}")
        else:
            lines += [f"{section}:", *(f"  {key}: {text}" for key, text in inside.items())]
    return "\n".join(lines) + "\n"


def _damage_characters(random, text):
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice(("", random.choice(CHARACTERS))) + text[at + random.randrange(2) :]
    return text


def _damage_lines(random, text):
    lines = text.split("\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    what = random.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:  # a key or a section twice
        lines.insert(at, lines[other])
    elif what == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines[at] = random.choice((" ", "   ", "\t", "- ")) + lines[at]
    else:
        lines.insert(at, random.choice(LINES))
    return "\n".join(lines)


def _rename(random, text):
    """A section or key with another spelling, or a different one."""
    name = random.choice([*sections(Config), *(key.partition(".")[2] for key in KEYS)])
    aliases = [alias for key in KEYS.values() for alias in key.aliases]
    other = random.choice(
        (name.upper(), name[:-1], name + name[-1:], random.choice(aliases), "x" * 3000, '"\\n\\e"', "base")
    )
    return text.replace(f"{name}:", f"{other}:", 1)


def _nest(random, text):
    deep = random.choice((5, 50, 400))
    opened, closed = random.choice((("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("&a [", "]"), ("!!seq [", "]")))
    return f"{text}data: {deep * opened}1{random.choice((deep, deep - 1, 0)) * closed}\n"


def _bomb(random, text):
    """Aliases of aliases, each of which would be ten times what the one before is."""
    levels = random.randrange(2, 12)
    lines = ["x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    for level in range(1, levels):
        lines.append(f"x{level}: &x{level} [{', '.join(10 * [f'*x{level - 1}'])}]")
    use = f"{random.choice(list(sections(Config)))}: {random.choice(('*x', '[*x', '{mean: *x', '{<<: *x'))}{levels - 1}"
    return "\n".join([*lines, use + random.choice(("", "]", "}")), text])


def _inherit(random, text):
    names = (
        *("a.yaml", "b.yaml", "c.yaml", "./a.yaml", "deep/../a.yaml", "none.yaml", "digits.yaml", "resnet50/fp16.yaml"),
    )
    odd = (".", "/dev/zero", "pipe.yaml", "[a.yaml]", '"\\0"', '"\\e[31m"', "''", "null", "x" * 300, "x" * 5000)
    return f"base: {random.choice(random.choice((names, odd)))}\n{text}"


DAMAGES = (
    *(_damage_characters, _damage_characters, _damage_lines, _damage_lines, _rename, _nest, _bomb, _inherit, _inherit),
)


def _encoded(random, text):
    data = text.encode("utf-8", "surrogatepass")
    what = random.randrange(40)
    if what == 0:
        return text.encode("utf-16", "surrogatepass")
    if what == 1:
        return b"\xef\xbb\xbf" + data
    if what == 2:
        at = random.randrange(len(data) + 1)
        return data[:at] + bytes(random.choices(range(256), k=3)) + data[at:]
    if what == 3:
        return data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b"\0")))
    return data


def override(random):
    """Returns a ``--set`` argument, which may be right."""
    name = random.choice(list(KEYS))
    if random.random() < 0.6:
        return f"{name}={_usual(random, KEYS[name])}"
    name = random.choice(
        (name, name, name, name.partition(".")[0], name.upper(), name[:-1], "", "base", "capture", "\x1b.\0")
    )
    return f"{name}{random.choice(('=', '=', '=', '', '==', ' = '))}{_odd(random)}"
