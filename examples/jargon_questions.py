#!/usr/bin/env python3
"""Makes conversations of the Jargon File: its entries as questions and answers.

  python3 examples/jargon_questions.py /usr/share/doc/jargon-text/jargon.txt.gz \\
    OUT.jsonl

One per line, for `brigade prepare --chat`. An entry is a line `:term:` and what
follows up to the next; its answer is the first sentences of its definition.
"""
import gzip
import json
import re
import sys

LONGEST_ANSWER = 280  # characters
SHORTEST_ANSWER = 30
ENTRY = re.compile(r"^   :([^:\n]+):(.*)$", re.MULTILINE)


def first_sentences(text):
    """As many whole sentences as the longest answer may have."""
    answer = ""
    for sentence in re.split(r"(?<=[.!?]) +", text):
        if len(answer) + len(sentence) >= LONGEST_ANSWER:
            break
        answer += (" " if answer else "") + sentence
    return answer


def answer_of(body):
    text = " ".join(body.split())
    text = re.sub(r"[{}]", "", text)
    text = re.sub(r"^\[[^\]]*\] ", "", text)  # where the word comes from
    text = re.sub(r"^1\. ", "", text)
    return first_sentences(text)


def conversations(text):
    entries = list(ENTRY.finditer(text))
    for entry, following in zip(entries, entries[1:]):
        term = entry.group(1).strip()
        answer = answer_of(text[entry.end():following.start()])
        if len(answer) >= SHORTEST_ANSWER:
            yield {"messages": [
                {"role": "user", "content": f"What does {term} mean?"},
                {"role": "assistant", "content": answer}]}


def main():
    source, out = sys.argv[1:]
    with gzip.open(source, "rt", encoding="utf-8") as file:
        found = list(conversations(file.read()))
    with open(out, "w", encoding="utf-8") as file:
        for each in found:
            file.write(json.dumps(each, ensure_ascii=False) + "\n")
    print(f"{len(found)} conversations")


main()
