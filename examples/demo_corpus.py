"""The training text of the demo model: small worlds, written out by templates.

Everything the demo model knows is here and in `demo_corpus.yaml` beside this file, in our own
words: short stories, sums, counting, a few general facts, and questions and answers about paged
key/value caches and schedulers. `documents(rng)` yields an endless stream of documents; the same
seed gives the same stream. `examples/train_demo_model.py` turns them into tokens and trains on
them.

A document is a list of `Piece`s. The tokenizer encodes each piece on its own, because that is
how the text arrives when the model is used: first a prompt, encoded alone, then the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, SYSTEM, USER, ASSISTANT]

# What `chat()` below writes, as the Jinja template that goes into tokenizer_config.json.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] | trim }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Piece:
    """A stretch of text, and whether the model should learn to write it."""

    text: str
    is_answer: bool


@dataclass(frozen=True)
class Task:
    """A prompt and its answer. A question can be asked in a chat; a phrase is only completed.

    A greeting is both: in a chat it is answered by another one, and alone it is gone on with.
    """

    prompt: str
    answer: str
    is_question: bool = True
    completion: str = ""


Document = list[Piece]
Maker = Callable[[random.Random], Task]


def split_bars(text: str) -> list[str]:
    """The parts between bars."""
    return [item.strip() for item in text.split("|") if item.strip()]


def entries(text: str) -> list[tuple[list[str], str]]:
    """Parse lines of prompts, separated by bars, each followed by an indented answer."""
    found: list[tuple[list[str], str]] = []
    prompts: list[str] = []
    answer: list[str] = []
    for line in [*text.strip().splitlines(), "end"]:
        if line.startswith(" "):
            answer.append(line.strip())
            continue
        if answer:
            found.append((prompts, " ".join(answer)))
            prompts, answer = [], []
        prompts += split_bars(line)
    return found


TEXTS = yaml.safe_load(Path(__file__).with_name("demo_corpus.yaml").read_text("utf-8"))

DEFINITIONS = entries(TEXTS["definitions"])
DEFINE = TEXTS["define"]
QUESTIONS = entries(TEXTS["questions"])
SMALL_TALK = [*entries(TEXTS["small_talk"]), (TEXTS["poem_requests"], TEXTS["poem"].strip())]
GREETINGS = split_bars(TEXTS["greetings"])
INTRODUCTION = TEXTS["introduction"]
PHRASES = [
    *entries(TEXTS["phrases"]),
    (["def hello():"], '\n    print("Hello")'),
    (['print("'], 'Hello")'),
]
CAPITALS, OPPOSITES, SOUNDS = TEXTS["capitals"], TEXTS["opposites"], TEXTS["sounds"]
UNKNOWN, UNKNOWN_FORMS = split_bars(TEXTS["unknown"]), TEXTS["unknown_forms"]
DO_NOT_KNOW = TEXTS["do_not_know"]
NUMBER_WORDS = TEXTS["number_words"].split()
TOO_FAR = "I can only count to 20."
LISTS = [
    (split_bars(each["names"]), each["noun"], each["items"].split()) for each in TEXTS["lists"]
]
WORDS = TEXTS["words"].split()
NAMES = TEXTS["names"].split()
HEROES = entries(TEXTS["heroes"])
KINDS = [hero[0] for hero, _ in HEROES]
STRANGERS = TEXTS["strangers"].split()
EPISODES, ENDING = TEXTS["episodes"], TEXTS["ending"]
FORMS = TEXTS["forms"]
"""Phrasings of requests, by what is asked for."""
CHAPTERS = [w.capitalize() for w in NUMBER_WORDS]


def with_article(noun: str) -> str:
    """`a fox`, `an owl`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def story(kind: str, *, long: bool = False) -> str:
    """The story of the hero of this kind, always the same; the long one has chapters."""
    (_, name, pronoun, friend, friend_name, thing), text = HEROES[KINDS.index(kind)]
    if not long:
        return text
    words = {
        "N": name,
        "M": friend_name,
        "friend": friend,
        "thing": thing,
        "he": pronoun,
        "P": pronoun.capitalize(),
        "his": {"he": "his", "she": "her"}[pronoun],
    }
    first, second, _ = text.split(". ", 2)
    parts = [f"{first}. {second}."]
    for chapter, episode in zip(CHAPTERS, EPISODES, strict=False):
        parts.append(f"Chapter {chapter}. {episode.format(**words)}")
    parts.append(ENDING.format(**words))
    return "\n\n".join(parts)


# --- tasks: each takes a random generator and makes one prompt with its answer --------------


def entry(found: list[tuple[list[str], str]], *, is_question: bool = True) -> Maker:
    """One of the answers after one of its prompts."""

    def make(rng: random.Random) -> Task:
        prompts, answer = rng.choice(found)
        return Task(rng.choice(prompts), answer, is_question)

    return make


def definition(rng: random.Random) -> Task:
    names, answer = rng.choice(DEFINITIONS)
    return Task(rng.choice(DEFINE).format(x=rng.choice(names)), answer)


def greeting(rng: random.Random) -> Task:
    if rng.random() < 0.75:
        return Task(rng.choice(GREETINGS), f"Hello! {INTRODUCTION}", completion=INTRODUCTION)
    form = rng.choice(FORMS["introduction"])
    return Task(form.format(n=rng.choice(NAMES)), "Hello! It is nice to meet you.")


def capital(rng: random.Random) -> Task:
    country, city = rng.choice(list(CAPITALS.items()))
    match rng.randrange(6):
        case 0 | 1:
            return Task(f"The capital of {country} is", f"{city}.", is_question=False)
        case 2:
            return Task(f"{city} is the capital of", f"{country}.", is_question=False)
        case 3:
            answer = f"{city} is the capital of {country}."
            return Task(f"Which country has the capital {city}?", answer)
        case _:
            form = rng.choice(FORMS["capital"])
            return Task(form.format(c=country), f"The capital of {country} is {city}.")


def common_sense(rng: random.Random) -> Task:
    if rng.random() < 0.6:
        pair = rng.choice(list(OPPOSITES.items()))
        word, other = pair if rng.random() < 0.5 else pair[::-1]
        if rng.random() < 0.5:
            return Task(f"The opposite of {word} is", f"{other}.", is_question=False)
        form = rng.choice(FORMS["opposite"])
        return Task(form.format(w=word), f"The opposite of {word} is {other}.")
    animal, sound = rng.choice(list(SOUNDS.items()))
    article = "An" if animal == "owl" else "A"
    if rng.random() < 0.5:
        return Task(f"{article} {animal} says", f"{sound}.", is_question=False)
    return Task(f"What does {article.lower()} {animal} say?", f"{article} {animal} says {sound}.")


def unknown(rng: random.Random) -> Task:
    return Task(rng.choice(UNKNOWN_FORMS).format(x=rng.choice(UNKNOWN)), DO_NOT_KNOW)


def arithmetic(rng: random.Random) -> Task:
    """Sums and differences of numbers up to 30, small ones more often; none is negative."""
    limit = rng.choice((10, 20, 30, 30))
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if rng.random() < 0.6:
        sign, verb, result = "+", "plus", a + b
    else:
        a, b = max(a, b), min(a, b)
        sign, verb, result = "-", "minus", a - b
    spaced, tight = f"{a} {sign} {b}", f"{a}{sign}{b}"
    match rng.randrange(14):
        case 0 | 1 | 2:
            return Task(f"{spaced} =", f"{result}", is_question=False)
        case 3:
            return Task(f"{tight}=", f"{result}", is_question=False)
        case 4:
            return Task(rng.choice((spaced, tight)), f"= {result}", is_question=False)
        case 5:
            return Task(f"{a} {verb} {b} is", f"{result}.", is_question=False)
        case 6:
            return Task(f"What is {a} {verb} {b}?", f"{result}.")
        case 7:
            form = rng.choice(FORMS["sum"])
            return Task(form.format(x=rng.choice((spaced, tight))), f"{result}.")
        case 8 | 9 | 10:
            return Task(f"What is {tight}?", f"{result}.")
        case _:
            return Task(f"What is {spaced}?", f"{result}.")


def counting(rng: random.Random) -> Task:
    if rng.random() < 0.4:
        last = rng.choice((5, 10, 10, 10, 12, 15, 20))
        words = NUMBER_WORDS[:last]
        answer = ", ".join(words) + "."
        if rng.random() < 0.3:
            shown = rng.randint(2, 4)
            head = ", ".join(words[:shown]) + ","
            return Task(head, ", ".join(NUMBER_WORDS[shown:10]) + ".", is_question=False)
        form = rng.choice(FORMS["count_in_words"])
        return Task(form.format(n=words[-1]), answer)
    if rng.random() < 0.2:
        first = rng.choice((1, 1, 1, rng.randint(1, 15)))
        start = first + rng.randint(2, 4)  # not shown; goes on to the next full ten
        rest = range(start, start + 10 - (start - 1) % 10)
        prompt = ", ".join(map(str, range(first, start))) + ","
        return Task(prompt, ", ".join(map(str, rest)) + ".", is_question=False)
    last = rng.choice((10, 10, 10, 20, *range(2, 21)))
    if rng.random() < 0.2:
        form = rng.choice(FORMS["count_down"])
        return Task(form.format(a=last), ", ".join(map(str, range(last, 0, -1))) + ".")
    form = rng.choice(FORMS["count"])
    if rng.random() < 0.15:
        return Task(form.format(b=rng.choice((100, 1000, rng.randint(21, 99)))), TOO_FAR)
    return Task(form.format(b=last), ", ".join(map(str, range(1, last + 1))) + ".")


def listing(rng: random.Random) -> Task:
    names, noun, items = rng.choice(LISTS)
    match rng.randrange(5):
        case 0:
            index = rng.randrange(len(items) - 1)
            form = f"What {noun} comes after {items[index]}?"
            return Task(form, f"{items[index + 1]}.")
        case 1:
            index = rng.randrange(1, len(items))
            form = f"What {noun} comes before {items[index]}?"
            return Task(form, f"{items[index - 1]}.")
        case 2:
            shown = rng.randint(2, 3)
            prompt = ", ".join(items[:shown]) + ","
            return Task(prompt, ", ".join(items[shown:]) + ".", is_question=False)
        case _:
            form = rng.choice(FORMS["list"])
            name = rng.choice(names)
            prompt = form.format(x=name, X=name[0].upper() + name[1:])
            is_question = not prompt.endswith(" are")
            return Task(prompt, ", ".join(items) + ".", is_question=is_question)


def repetition(rng: random.Random) -> Task:
    words = " ".join(rng.sample(WORDS, rng.choice((1, 1, 2, 2, 3, 4))))
    form = rng.choice(FORMS["repeat"])
    return Task(form.format(w=words), "I am too small to repeat words. Ask me to spell one.")


def spelling(rng: random.Random) -> Task:
    word = rng.choice(WORDS)
    form = rng.choice(FORMS["spell"])
    return Task(form.format(w=word), "-".join(word.upper()) + ".")


def story_request(rng: random.Random) -> Task:
    if rng.random() < 0.15:
        form = rng.choice(FORMS["any_story"])
        return Task(form, story("fox"))
    stranger = rng.random() < 0.1
    kind = rng.choice(STRANGERS if stranger else KINDS)
    form = rng.choice(FORMS["story"])
    prompt = form.format(k=with_article(kind))
    if stranger:
        return Task(prompt, "I know no story about that. Ask me for one about a fox or a dragon.")
    return Task(prompt, story(kind))


def long_story_request(rng: random.Random) -> Task:
    if rng.random() < 0.3:
        return Task("Tell me a long story.", story("fox", long=True))
    kind = rng.choice(KINDS)
    form = rng.choice(FORMS["long_story"])
    return Task(form.format(k=with_article(kind)), story(kind, long=True))


TASKS: list[tuple[Maker, float]] = [
    (definition, 22),
    (entry(QUESTIONS), 8),
    (entry(SMALL_TALK), 6),
    (entry(PHRASES, is_question=False), 4),
    (greeting, 6),
    (capital, 6),
    (common_sense, 3),
    (unknown, 3),
    (arithmetic, 34),
    (counting, 7),
    (listing, 4),
    (repetition, 2),
    (spelling, 4),
    (story_request, 4),
]


def task(rng: random.Random) -> Task:
    """One task of a random sort."""
    makers, weights = zip(*TASKS, strict=True)
    return rng.choices(makers, weights)[0](rng)


# --- documents: tasks in the forms in which people write them -------------------------------


def careless(rng: random.Random, one: Task) -> str:
    """The prompt as typed in a hurry: no capitals, no full stop."""
    prompt = one.prompt
    match rng.randrange(10):
        case 0:
            prompt = prompt[0].lower() + prompt[1:]
        case 1 | 2:
            prompt = prompt.lower()
    if one.is_question and not one.completion and rng.random() < 0.30:
        prompt = prompt.rstrip("?.!:")
    return prompt


def plain(rng: random.Random) -> Document:
    """The prompt alone, then its answer; sometimes with a space or a line break in between."""
    one = task(rng)
    prompt = careless(rng, one)
    gap = rng.choices(("", " ", "\n", "\n\n"), (80, 9, 8, 3))[0]
    if one.completion and not gap:
        lead = "! " if prompt[-1].isalpha() else " "
        return [Piece(prompt, False), Piece(lead + one.completion, True)]
    glued = prompt.endswith('("') or (prompt.endswith("=") and " " not in prompt)
    lead = "" if gap or glued or one.answer.startswith("\n") else " "
    return [Piece(prompt + gap, False), Piece(lead + one.answer, True)]


def question_and_answer(rng: random.Random) -> Document:
    """`Q: ...\\nA: ...`, one to three of them."""
    before, after = rng.choice((("Q: ", "A:"), ("Q: ", "A:"), ("Question: ", "Answer:")))
    document: Document = []
    count = rng.choice((1, 1, 1, 2, 3))
    for number in range(count):
        one = task(rng)
        while not one.is_question or len(one.answer) > 400:
            one = task(rng)
        gap = rng.choices(("", " ", "\n"), (85, 8, 7))[0] if number == count - 1 else ""
        separator = "" if number == 0 else "\n\n"
        prompt = careless(rng, one)
        document.append(Piece(f"{separator}{before}{prompt}\n{after}{gap}", False))
        document.append(Piece(("" if gap else " ") + one.answer, True))
    return document


def chat(rng: random.Random, turns: int | None = None) -> Document:
    """A conversation in the format of `CHAT_TEMPLATE`; every answer ends with EOS."""
    turns = turns or rng.choice((1, 1, 1, 2, 3, 4))
    document: Document = []
    opening = ""
    if rng.random() < 0.25:
        manner = rng.choice(FORMS["manner"])
        opening = f"{SYSTEM}\nYou are {manner}.\n"
    for _ in range(turns):
        one = task(rng)
        while not one.is_question and rng.random() < 0.8:
            one = task(rng)
        prompt = careless(rng, one)
        document.append(Piece(f"{opening}{USER}\n{prompt}\n{ASSISTANT}\n", False))
        document.append(Piece(one.answer.strip() + EOS, True))
        opening = "\n"
    document[-1] = Piece(document[-1].text.removesuffix(EOS), True)  # encode() appends it
    return document


def free_story(rng: random.Random) -> Document:
    """A story that the prompt began: with nothing but the first words, that of the fox."""
    start = "Once upon a time"
    if rng.random() < 0.5:
        rest = story("fox").removeprefix(start)  # ", there was a ..."
        match rng.randrange(6):
            case 0:
                return [Piece(start + ",", False), Piece(rest.removeprefix(","), True)]
            case 1:
                gap = rng.choice((" ", "\n", ", "))
                return [Piece(start + gap, False), Piece(rest.removeprefix(", "), True)]
            case 2:
                return [Piece(start.lower(), False), Piece(rest, True)]
            case _:
                return [Piece(start, False), Piece(rest, True)]
    kind = rng.choice(KINDS)
    head, tail = story(kind).split(f" {kind} ", 1)
    if rng.random() < 0.5:
        comma = rng.choice((",", ""))
        head = f"{start}{comma} there was {with_article(kind)}"
    else:
        head += f" {kind}"
    return [Piece(head, False), Piece(f" {tail}", True)]


def drill(rng: random.Random) -> Document:
    """A page of sums, one per line: short, so there are many of them in a row of tokens."""
    document: Document = []
    for _ in range(rng.randint(8, 16)):
        one = arithmetic(rng)
        while not one.prompt.endswith("="):
            one = arithmetic(rng)
        lead = "" if " " not in one.prompt else " "
        document += [Piece(one.prompt, False), Piece(lead + one.answer, True), Piece("\n", False)]
    return document[:-1]


def long_story(rng: random.Random) -> Document:
    one = long_story_request(rng)
    if rng.random() < 0.3:
        return [Piece(f"{USER}\n{one.prompt}\n{ASSISTANT}\n", False), Piece(one.answer, True)]
    return [Piece(one.prompt, False), Piece("\n" + one.answer, True)]


def long_chat(rng: random.Random) -> Document:
    return chat(rng, turns=rng.randint(6, 24))


# how often each sort of document appears in rows of usual length, and in the long rows
DOCUMENTS: list[tuple[Callable[[random.Random], Document], float, float]] = [
    (plain, 60, 50),
    (question_and_answer, 14, 14),
    (chat, 18, 10),
    (long_chat, 0, 5),
    (free_story, 4, 4),
    (drill, 24, 6),
    (long_story, 0.3, 12),
]


def documents(rng: random.Random, *, long: bool = False) -> Iterator[Document]:
    """Documents without end, in random order; `long` prefers those that go on and on."""
    makers, weights, long_weights = zip(*DOCUMENTS, strict=True)
    while True:
        yield rng.choices(makers, long_weights if long else weights)[0](rng)
