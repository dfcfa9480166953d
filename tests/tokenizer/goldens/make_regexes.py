#!/usr/bin/env python3
"""Writes regexes.json: how Hugging Face's engine splits texts by patterns.

  python3 make_regexes.py      # needs PyPI's tokenizers (0.23.3)

"chosen" are patterns by hand, one or more for each part of Oniguruma's syntax
that Brigade reads; "generated" are random ones, which it may refuse. Each is
[pattern, [[text, [piece, ...]], ...]].
"""
import json
import pathlib
import random

CHOSEN = [
    # Intervals: a + behind one repeats it.
    r"\p{N}{1,3}+|\p{L}+| ", r"\p{N}{2}+", r"\p{N}{,3}|\p{L}+",
    r"(?:\d\d){1,2}+|[a-z]", r"\d{2}?", r"\d{3,2}", r"\d{1,2}?", r"\d{2,}",
    r"a{,}", r"a{x}", r"{", r"a{2}{2}", r"a{0}b", r"a**b", r"a+?*b", r"a++a",
    r"a?+a", r"a*+b", r"(?:a{1,2}+)?b",
    # Escapes.
    r"\t|\n|\r|\f|\v|\a|\e", r"\x41|\x{e9}|\u4e2d|\o{101}|\101|\0", r"\cA|\C-a",
    r"\_|\-|\é|\q", r"\h+|\H", r"\w+|\W", r"\d+|\D", r"\s+|\S", r"\R", r"\N+",
    r"\O+",
    # Properties.
    r"\p{Letter}+|\p{^L}", r"\pL|\PN", r"\p{Lu}\p{Ll}*", r"\P{^Lu}+",
    r"\p{uppercase letter}", r"\p{Han}+|\p{Hiragana}+|\p{Katakana}+",
    r"\p{Alnum}+|\p{Punct}", r"\p{Word}+", r"\p{Graph}+", r"\p{Print}+",
    r"\p{Blank}+", r"\p{Cntrl}", r"\p{XDigit}+", r"\p{ASCII}+", r"\p{Any}",
    r"\p{Emoji}", r"\p{Alphabetic}+", r"\p{White_Space}+",
    # Classes.
    r"[]a]+|[^]a]", r"[a-c-e]+", r"[-a]+", r"[a-]+", r"[\b]", r"[\]\-\\^]+",
    r"[a-z&&[^aeiou]]+", r"[^a-m&&[a-z]]", r"[\w&&[^\d_]]+", r"[a[b[c]]]+",
    r"[[^a]&&[^b]]", r"[^[:alpha:]]+", r"[[:^alpha:]\d]+", r"[[:punct:]]+",
    r"[[:space:][:upper:]]+", r"[\W\d]+", r"[^\W]+", r"[\H]+", r"[\P{L}a]+",
    r"[.*+?(){}|$]+", r"[\R]", r"[&a]+",
    # Groups.
    r"(?<pair>[a-z])\k<pair>", r"(?'c'\d)\k'c'", r"([a-z])\1", r"(a)(b)?\1",
    r"(?<x>a)(b)", r"(?:a|ab)c?", r"(?>a+)b?", r"a(?=b)", r"a(?!b)",
    r"(?<=a)b", r"(?<!a)b", r"(?<=a|bc)x?", r"(?<=\s)\d", r"(?#comment)a",
    r"(?x) a \  b # comment", "(?x)\n  \\d +  # digits\n",
    # Options.
    r"(?i)ab", r"(?i:'s|'t|'re)|\w", r"a(?i)b|c", r"(?:a(?i)b|c)d?",
    r"(?i:a(?-i:b))", r"(?m:.)+", r"(?m).+", r"(?-m:.)+", r"(?mi-x:a.)",
    r"(?i)[k-l]+", r"(?i)[^a-z]+", r"(?i)[^\p{L}]+", r"(?i)\p{Lu}",
    # Anchors.
    r"^.", r".$", r"\A.", r".\Z", r".\z", r"\b\w", r"\w\b", r"\B\w", r"^",
    r"\G\w", r"a\Kb",
    # Patterns of published tokenizers.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}"
    r"\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
    r"[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"
    r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{Han}+|[^\p{Han}]+", r"[一-龥぀-ゟ゠-ヿ]+",
]
TEXTS = [
    "in 1234567 ab", "aaaaabab abc aab", "The cat's 'S it'LL K\u212A x\u017F",
    "a\tb\n\ncd\r\n\x01A\x07\x1b e", "é\u0301 中文かなカナ ١٢² Ⓐ ͅ ß Σς",
    "{a} a{x} a{,} [a]-^\\ .*+?()|$ & k:l", "Hello, World_1! don't\u3000x",
    "  two  spaces\n\n", "bcx ax 1 22 aa b ab Abc aBC d",
    "😀 a\u00ad\u200d \u2028x\u0085y\u00a0z",
]

CHARACTERS = list("abcsS1 2.-_'\n{}]&") + [
    "é", "\u212A", "ſ", "中", "١", "²", "\u0345", "\u0301", "\r", "\t",
    "\u3000", "Ⓐ", "ı", "ß", "Σ", "ς"]
LITERALS = list("abcsSkK12_'- }{],#") + [
    "é", "中", "\\.", "\\-", "\\n", "\\x41", "\\x{e9}", "\\u4e2d", "\\t",
    "\\_", "\\101"]
TYPES = ["\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\h", "\\H"]
PROPERTIES = [
    "L", "Lu", "Ll", "N", "Nd", "P", "S", "Z", "M", "Han", "Latin", "^L",
    "Alpha", "Alnum", "Punct", "Space", "Word", "Upper", "Lower", "letter",
    "Uppercase_Letter", "XDigit", "Graph", "Print", "Blank", "Cntrl", "ASCII",
    "Any", "Greek", "Digit"]
POSIX = [
    "alpha", "^alpha", "digit", "space", "punct", "upper", "lower", "word",
    "alnum", "xdigit", "^space", "graph", "print", "blank", "ascii", "cntrl"]


class Patterns:
    """Random patterns of Oniguruma's syntax, some of them faulty."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, choices):
        """One of (weight, function or text)."""
        weights = [weight for weight, _ in choices]
        made = self.random.choices([make for _, make in choices], weights)[0]
        return made() if callable(made) else made

    def property(self):
        return "\\%s{%s}" % (self.random.choice("pP"),
                             self.random.choice(PROPERTIES))

    def character_class(self, depth=0):
        pick = self.random.choice
        members = [self.of([
            (35, lambda: pick(["a", "b", "c", "s", "K", "1", " ", "é", "中",
                               "\\]", "\\-", "\\n", "\\b", "\\\\", "\\x41",
                               ".", "*", "(", "'", "^", "\\^"])),
            (15, lambda: pick(["a-c", "A-Z", "0-9", "a-z", "\\x41-\\x5a",
                               "é-中", "\u0300-\u036f"])),
            (12, lambda: pick(TYPES)),
            (12, self.property),
            (8, lambda: "[:%s:]" % pick(POSIX)),
            (8, lambda: self.character_class(depth + 1) if depth < 2 else "a"),
            (7, "&&"),
            (3, "-"),
        ]) for _ in range(self.random.randint(1, 4))]
        return "[%s%s%s]" % (pick(["", "", "^"]), pick(["", "", "", "]", "-"]),
                             "".join(members))

    def quantifier(self):
        if self.random.random() < 0.5:
            return ""
        pick = self.random.choice
        return pick(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "{2,1}",
                     "{0}", "{1,1}", "{,}", "{x}", "{0,3}"]) + self.of([
                         (57, ""), (15, "?"), (20, "+"), (5, "*"),
                         (3, "{2}")])

    def group(self, depth):
        inside = self.alternatives(depth + 1)
        return self.of([
            (35, "(?:%s)" % inside), (15, "(%s)" % inside),
            (8, "(?>%s)" % inside), (8, "(?=%s)" % inside),
            (8, "(?!%s)" % inside),
            (6, lambda: "(?<=%s)" % self.alternatives(3)),
            (6, lambda: "(?<!%s)" % self.alternatives(3)),
            (3, lambda: self.random.choice(["(?i)", "(?m)", "(?x)"])),
            (4, lambda: self.random.choice(
                ["(?i:%s)", "(?m:%s)", "(?-i:%s)", "(?im-x:%s)"]) % inside),
            (2, "(?<n>%s)\\k<n>" % inside), (2, "\\1"), (3, "(?#c)"),
        ])

    def atom(self, depth):
        pick = self.random.choice
        return self.of([
            (40, lambda: pick(LITERALS)), (10, lambda: pick(TYPES)),
            (8, self.property), (14, self.character_class), (3, "."),
            (5, lambda: pick(["^", "$", "\\A", "\\Z", "\\z", "\\b", "\\B",
                              "\\R", "\\N", "\\O", "\\G"])),
            (20, lambda: self.group(depth) if depth < 3 else pick(LITERALS)),
        ])

    def alternatives(self, depth=0):
        return "|".join(
            "".join(self.atom(depth) + self.quantifier()
                    for _ in range(self.random.choice([1, 1, 2, 2, 3, 4])))
            for _ in range(self.random.choice([1, 1, 1, 2, 3])))

    def text(self):
        return "".join(self.random.choice(CHARACTERS)
                       for _ in range(self.random.randint(1, 12)))


def split(pattern, text):
    from tokenizers import Regex, pre_tokenizers
    splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


def generated(seed, count, texts):
    """Patterns that the engine takes, with texts and its pieces."""
    patterns = Patterns(seed)
    cases = []
    while len(cases) < count:
        pattern = patterns.alternatives()
        of_pattern = [patterns.text() for _ in range(texts)]
        try:
            cases.append([pattern, [[text, split(pattern, text)]
                                    for text in of_pattern]])
        except Exception:  # a fault in the pattern
            pass
    return cases


def main():
    chosen = [[pattern, [[text, split(pattern, text)] for text in TEXTS]]
              for pattern in CHOSEN]
    path = pathlib.Path(__file__).parent / "regexes.json"
    lines = []
    for name, cases in (("chosen", chosen),
                        ("generated", generated(7, 400, 6))):
        lines.append('"%s": [\n%s\n]' % (name, ",\n".join(
            json.dumps(case) for case in cases)))
    path.write_text("{\n%s\n}\n" % ",\n".join(lines))


if __name__ == "__main__":
    main()
