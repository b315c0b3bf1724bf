"""The training text of the demo model: small worlds, written out by templates.

Everything the demo model knows is in this file, in our own words: short stories, sums,
counting, a few general facts, and questions and answers about paged key/value caches and
schedulers. `documents(rng)` yields an endless stream of documents; the same seed gives the
same stream. `examples/train_demo_model.py` turns them into tokens and trains on them.

A document is a list of `Piece`s. The tokenizer encodes each piece on its own, because that is
how the text arrives when the model is used: first a prompt, encoded alone, then the answer.
"""

# ruff: noqa: SIM905  (long lists of words read better as text)

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
        prompts += [prompt.strip() for prompt in line.split("|") if prompt.strip()]
    return found


# --- paging, scheduling, serving: definitions -----------------------------------------------

# (names of the thing, what it is); the phrasings come from DEFINE below
DEFINITIONS = entries("""
a block table | the block table | block tables
    A block table maps the logical blocks of a sequence to physical blocks in the cache, as a
    page table does for memory.
paged attention | PagedAttention
    Paged attention stores keys and values in fixed-size blocks that may lie anywhere in memory,
    and finds them through a block table.
copy-on-write | copy on write
    Copy-on-write lets sequences share a block until one of them writes to it; only then is the
    block copied.
preemption | a preemption
    Preemption takes the blocks away from a running request, so that others can go on; it is
    resumed later.
prefix caching | a prefix cache | the prefix cache
    Prefix caching keeps the blocks of old prompts, so that a new prompt with the same beginning
    does not compute them again.
a KV cache | the KV cache | the key/value cache | KV caching
    The KV cache holds the keys and values of all tokens so far, so that each step only computes
    the new token.
a block | a KV block | a cache block
    A block is a fixed number of token slots in the cache, for example sixteen.
a physical block | physical blocks
    A physical block is a real piece of cache memory; its number says where it lies.
a logical block | logical blocks
    A logical block is the place of a block within its sequence, counted from zero.
the block size | block size
    The block size is the number of tokens that one block holds; sixteen is common.
a block allocator | the block allocator
    The block allocator hands out free blocks and takes them back when nobody uses them.
an evictor | the evictor
    The evictor decides which cached block is thrown away when a free block is needed.
eviction | cache eviction
    Eviction drops a cached block that no request uses, to make room for new tokens.
LRU | LRU eviction | least recently used
    LRU evicts the block that was not used for the longest time.
FIFO | FIFO eviction
    FIFO evicts the block that entered the cache first.
LFU | LFU eviction | least frequently used
    LFU evicts the block that was used the fewest times.
SLRU | segmented LRU
    SLRU keeps blocks that were hit twice in a protected segment and evicts the others first.
MRU | MRU eviction
    MRU evicts the block that was used last, which helps when a long scan repeats.
continuous batching | in-flight batching
    Continuous batching lets requests join and leave the batch at every step instead of waiting
    for the whole batch.
iteration-level scheduling | iteration level scheduling
    Iteration-level scheduling chooses the batch anew before every single step; Orca made it
    known.
static batching | a static batch
    Static batching starts a batch of requests together and waits until the longest one is done.
chunked prefill | chunked prefills
    Chunked prefill splits a long prompt into pieces, so that other requests can decode in
    between.
prefill | the prefill phase
    Prefill computes the keys and values of the whole prompt, many tokens at once.
decode | decoding | the decode phase
    Decode produces the answer one token per step, and each step reads the whole cache.
a scheduler | the scheduler
    The scheduler decides at every step which requests run and how many tokens each may compute.
a token budget | the token budget
    The token budget limits how many tokens one step may compute over all requests.
recompute | recomputation | preemption by recompute
    Recompute frees the blocks of a preempted request and computes them again when it comes
    back.
swapping | swap | preemption by swap
    Swapping moves the blocks of a preempted request to host memory and brings them back later.
a watermark | the watermark
    The watermark is a small share of blocks kept free when requests are admitted, to avoid
    early preemption.
a victim | the victim
    The victim is the running request that must give up its blocks when memory is short.
a reference count | reference counting
    A reference count says how many sequences use a block; at zero the block is free.
a free list | the free list
    The free list holds the blocks that nobody uses, ready to be handed out.
internal fragmentation
    Internal fragmentation is memory lost inside a reservation, such as the empty slots of a
    last block.
external fragmentation
    External fragmentation is free memory in holes too small to use; blocks of equal size avoid
    it.
fragmentation | memory fragmentation
    Fragmentation is memory that is free but cannot be used; paging leaves very little of it.
vLLM
    vLLM is an open-source engine for language models that made paged attention popular.
Orca
    Orca is a serving system that introduced iteration-level scheduling for language models.
nano-vLLM
    nano-vLLM is a very small engine in the style of vLLM that is easy to read.
FasterTransformer
    FasterTransformer is an older engine with fast kernels that reserves memory for the longest
    output.
FCFS | first come first served | first-come, first-served
    First come, first served runs requests in the order in which they arrived.
priority scheduling
    Priority scheduling runs the most important requests first and preempts the least important.
shortest job first | SJF
    Shortest job first runs the request with the least work first, which lowers the mean waiting
    time.
HRRN | highest response ratio next
    HRRN prefers short requests but raises those that have waited long, so that nobody starves.
EDF | earliest deadline first
    Earliest deadline first runs the request whose deadline is nearest.
fair scheduling | fair queueing
    Fair scheduling counts the tokens each user received and serves the one with the fewest.
longest prefix order | longest prefix first
    Longest prefix first runs the request with the most cached tokens before the others.
head-of-line blocking
    Head-of-line blocking is when one large request at the front makes all the others wait.
starvation
    Starvation is when a request waits forever because others always go before it.
time to first token | TTFT
    Time to first token is how long a user waits until the first token of the answer appears.
time per output token | TPOT
    Time per output token is the mean time between two tokens of one answer.
throughput
    Throughput is the number of tokens that the engine produces per second over all requests.
latency
    Latency is the time that one request takes from start to end.
goodput
    Goodput counts only the requests that were answered within their time limit.
beam search
    Beam search keeps the few most likely sequences at every step; with paging they share their
    blocks.
greedy decoding | greedy sampling
    Greedy decoding always takes the most likely next token.
temperature | the temperature | sampling temperature
    Temperature makes sampling bolder when it is high and safer when it is low; zero is greedy.
top-k sampling | top-k | top k
    Top-k sampling chooses among the k most likely tokens only.
top-p sampling | top-p | nucleus sampling
    Top-p sampling chooses among the most likely tokens whose probabilities add up to p.
sampling
    Sampling picks the next token at random, following the probabilities of the model.
a tokenizer | the tokenizer
    A tokenizer cuts text into tokens and joins tokens back.
a token | tokens
    A token is a small piece of text, often a word or a part of one.
an EOS token | the EOS token | EOS
    The EOS token marks the end of a text; when the model writes it, the request is finished.
a BOS token | the BOS token | BOS
    The BOS token marks the beginning of a text.
attention | self-attention
    Attention lets each token look at the earlier tokens and take from them what it needs.
grouped-query attention | GQA
    Grouped-query attention lets several query heads share one key/value head, so the cache is
    smaller.
multi-query attention | MQA
    Multi-query attention uses a single key/value head for all query heads.
RoPE | rotary position embedding
    RoPE turns queries and keys by an angle that depends on their position.
RMSNorm
    RMSNorm divides a vector by its root mean square and scales it by learned weights.
a sliding window | sliding window attention
    A sliding window lets a token see only the last few tokens, so older blocks can be freed.
a CUDA graph | CUDA graphs
    A CUDA graph records many kernel launches once and replays them with little overhead.
speculative decoding
    Speculative decoding lets a small model guess several tokens that the large model then
    checks at once.
tensor parallelism
    Tensor parallelism splits every layer over several devices that work on the same token.
a slot mapping | the slot mapping
    A slot mapping tells for each new token into which cache slot its key and value go.
forking | a fork | forking a sequence
    Forking makes a second sequence that shares all blocks of the first until one writes.
paged_core | paged-core
    paged_core is a language model engine made of parts that you can swap one by one.
a plugin | plugins
    A plugin is a package that adds a policy or a backend without changing the engine.
a runner | the runner
    The runner loads the model and computes its layers for the tokens of a step.
an executor | the executor
    The executor is where the model runs; it takes the plan of a step and returns new tokens.
an attention backend | the attention backend
    An attention backend writes keys and values into the cache and computes attention over the
    blocks.
an observer | observers
    An observer watches the engine at each step, for example to record metrics.
a decision log | the decision log
    A decision log records what the scheduler chose at each step, so that it can be replayed.
quantization
    Quantization stores numbers with fewer bits, which saves memory and some accuracy.
a page table | page tables
    A page table maps the virtual pages of a program to real pages of memory.
paging
    Paging cuts memory into pieces of equal size, so that any free piece can serve any request.
virtual memory
    Virtual memory gives each program its own address space and maps it to real memory by pages.
a language model | an LLM | a large language model
    A language model predicts the next token of a text, again and again.
a GPU
    A GPU is a processor with thousands of small cores, good at large matrix products.
batching
    Batching computes many requests in one step, so that the weights are read only once.
""")

DEFINE = (
    "What is {x}?",
    "What is {x}?",
    "What is {x}?",
    "Explain {x}.",
    "Explain {x}.",
    "What does {x} mean?",
    "Define {x}.",
    "Describe {x}.",
    "Tell me about {x}.",
    "Can you explain {x}?",
    "What's {x}?",
    "What do you know about {x}?",
    "Please explain {x}.",
    "Explain {x} in one sentence.",
    "How would you describe {x}?",
)

# --- paging, scheduling, serving: other questions -------------------------------------------

QUESTIONS = entries("""
Why is paging useful? | Why should the KV cache be paged? | What are the benefits of paging?
    Paging wastes almost no memory, so more requests fit into a batch.
When is a block copied? | When does copy-on-write copy a block? |
When do we copy a shared block?
    A block is copied when a sequence wants to write to it while another one still uses it.
When is a request preempted? | When does preemption happen? | Why are requests preempted?
    A request is preempted when no block is free and another request must grow.
How does prefix caching find a block? | How are cached blocks found? | How is a block hashed?
    The tokens of a full block and the hash of the block before it give a key, which is looked
    up in a table.
Why are only full blocks cached? | Can a half-full block be cached? |
Are partial blocks shared in the prefix cache?
    Only full blocks are cached, because a block that still grows would change its hash.
What happens when the pool runs out of blocks? | What happens if there are no free blocks? |
What if memory is full?
    First a cached block is evicted; if there is none, a running request is preempted.
What happens to the blocks of a finished request? | When are blocks freed? |
Where do blocks go when a request ends?
    They return to the pool, and full blocks stay in the prefix cache until they are evicted.
What is the difference between prefill and decode? | How does prefill differ from decode? |
Compare prefill and decode.
    Prefill computes many prompt tokens at once; decode computes one token per request and step.
Why is decode limited by memory? | Why is decoding slow? | Why is decode memory bound?
    Each decode step reads all weights and the cache to produce only one token per request.
Is a larger block size better? | How do I choose the block size? | What is a good block size?
    Small blocks waste less memory and share more; large blocks need fewer look-ups.
Should I use swap or recompute? | Which is better, swap or recompute? |
Is swapping faster than recomputing?
    Recompute is simple and often faster; swap pays off for long sequences and fast links.
Why does batching help? | Why do we batch requests? | Why are batches faster?
    A batch reads the weights once for many requests, so each token becomes cheaper.
Does the text depend on the schedule? | Does preemption change the output? |
Does the scheduler change the answer?
    No, the schedule changes only when a token is computed, never which token it is.
How much memory does the KV cache need? | How large is the KV cache? | How big is a KV cache?
    For each token: two times layers times key/value heads times head size times bytes per
    number.
What is the difference between vLLM V0 and V1? | How does vLLM V1 differ from V0? |
Compare vLLM V0 and V1.
    V0 runs either prefill or decode in a step; V1 mixes both under one token budget.
What is the difference between static and continuous batching? |
How does continuous batching differ from static batching? |
Compare static and continuous batching.
    A static batch waits for its slowest request; a continuous batch fills each free place at
    once.
Where does the idea of paging come from? | Who had the idea of paging first? |
What inspired paged attention?
    It comes from the virtual memory of operating systems.
Which request is the victim? | Who is preempted first? | Which request is preempted?
    By default the newest request is preempted, so that the oldest can finish.
Can two requests share a block? | Can sequences share blocks? | Is it possible to share blocks?
    Yes, requests with the same prefix share its full blocks.
Why does a long prompt hurt other requests? | Why do we chunk the prefill? |
Why is chunked prefill useful?
    A long prompt would fill a whole step, and the others would wait; chunks leave room for
    them.
How many blocks do 100 tokens need with a block size of 16? |
How many blocks of 16 do 100 tokens need? |
How many blocks hold 100 tokens if the block size is 16?
    Seven blocks: six are full and the last one holds four tokens.
How do I run the demo? | How do I use paged_core? | How do I generate text?
    Type paged-core generate "Hello" in a terminal.
Which scheduler should I use? | What is the default scheduler? | Which scheduler is the default?
    The default is token_budget, which works like the scheduler of vLLM V1.
What happens in a step? | What does the engine do in a step? | How does the engine work?
    The scheduler chooses tokens, the model computes them, and the engine appends what was
    sampled.
""")

# --- small talk and general knowledge -------------------------------------------------------

SMALL_TALK = entries("""
Good morning | Good morning!
    Good morning! What would you like to know?
Good night | Good night!
    Good night, and sleep well!
How are you? | How are you today? | Hello, how are you? | Hi, how are you?
    I am fine, thank you. All my blocks are in order.
Who are you? | What are you? | Are you a robot? | Introduce yourself.
    I am a very small language model that ships with paged_core.
What is your name? | What's your name? | Do you have a name?
    My name is Demo, the tiny model of paged_core.
What can you do? | Help | Help me | What do you know? | Can you help me?
    I can tell stories, add small numbers, count, and answer questions about paged attention and
    schedulers.
How large are you? | How many parameters do you have? | How big are you?
    I have fewer than three million parameters, so please be kind.
Who made you? | How were you trained? | Where do you come from?
    I was trained in a few minutes on a laptop by a script in the examples folder.
Thank you | Thanks | Thank you! | Thanks! | Thank you very much.
    You are welcome!
Goodbye | Bye | Bye! | Goodbye! | See you later.
    Goodbye! Come back soon.
Tell me a joke. | Tell me a joke | Do you know a joke? | Make me laugh.
    Why did the token cross the block? Because its slot was on the other side.
What is the meaning of life? | What is the answer to everything?
    Forty-two, or a good book and a quiet evening.
What is my name? | Do you know my name? | Who am I? | Do you remember my name?
    I am too small to remember names.
How many days are in a week? | How many days does a week have?
    A week has seven days.
How many months are in a year? | How many months does a year have?
    A year has twelve months.
How many legs does a spider have?
    A spider has eight legs.
How many legs does a dog have? | How many legs does a cat have?
    It has four legs.
What color is the sky? | What colour is the sky? | Why is the sky blue?
    The sky is blue because the air scatters blue light the most.
What color is grass? | What colour is grass?
    Grass is green.
What do bees make?
    Bees make honey.
What do cows drink? | What do cows eat?
    Cows drink water and eat grass.
What is water made of?
    Water is made of hydrogen and oxygen.
What is the sun?
    The sun is the star at the center of our solar system.
What is the moon?
    The moon goes around the earth once a month.
Which planet do we live on? | What is the earth?
    The earth is the planet we live on.
What is the largest ocean?
    The largest ocean is the Pacific.
What is Python? | Explain Python.
    Python is a programming language that is easy to read.
""")
GREETINGS = (
    "Hello|Hello|Hello|Hello!|Hello!|Hi|Hi|Hi!|Hello there|Hello there!|Hey|Hey!|Hi there|"
    "Hi there!|Greetings|Hello."
).split("|")
INTRODUCTION = "I am the demo model of paged_core. How can I help you?"
POEM_REQUESTS = ["Write a poem.", "Write me a poem.", "Write a short poem.", "Tell me a poem."]
POEM = (
    "A block is free, a block is full,\nthe queue is short, the night is cool;\n"
    "a token comes, a token goes,\nand where it lies the table knows."
)
SMALL_TALK.append((POEM_REQUESTS, POEM))

PHRASES = [
    *entries("""
Hello, my name is | Hi, my name is | My name is
    Demo, and I am the demo model of paged_core.
The future of AI is
    open, and it will need a lot of memory for keys and values.
The president of the United States is
    chosen by the voters every four years.
The meaning of life is
    to be kind, to learn, and to rest now and then.
The sky is
    blue and the grass is green.
The sun is
    a star, and the moon goes around the earth.
The weather today is
    sunny and warm, with a light wind from the sea.
The quick brown fox
    jumps over the lazy dog.
I like
    to read stories in the garden when the sun is shining.
I love
    my family, my friends and my little dog.
I am
    a small model, but I do my best.
My favorite color is
    blue, like the sea on a summer day.
My favorite food is
    warm bread with butter and honey.
Today is
    a good day to learn something new.
Paged attention is
    a way to store keys and values in blocks of equal size.
A block table is
    a list that maps logical blocks to physical blocks.
The scheduler decides
    which requests run in the next step.
The KV cache is
    a store for the keys and values of all earlier tokens.
In a paged cache,
    every sequence keeps a table of its blocks.
Large language models are
    trained to predict the next token of a text.
The best way to learn is
    to try things out and to ask questions.
In the morning,
    the birds sing and the baker opens his shop.
The cat
    sat on the warm roof and looked at the birds.
The dog
    ran across the field and brought back the ball.
There was a
    small house by the river, and an old woman lived in it.
The answer is
    forty-two.
This is
    a short text written by a very small model.
Deep learning is
    a way to learn from examples with many layers of numbers.
To be or not to be,
    that is a question for a larger model.
"""),
    (["def hello():"], '\n    print("Hello")'),
    (['print("'], 'Hello")'),
]

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "England": "London", "Ireland": "Dublin", "Austria": "Vienna",
    "Switzerland": "Bern", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Hungary": "Budapest",
    "Russia": "Moscow", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Canada": "Ottawa", "Mexico": "Mexico City",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima",
    "Australia": "Canberra", "Turkey": "Ankara", "the United States": "Washington",
    "the Netherlands": "Amsterdam", "Belgium": "Brussels", "Thailand": "Bangkok",
    "South Korea": "Seoul", "Cuba": "Havana",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "black": "white", "fast": "slow",
    "old": "new", "happy": "sad", "long": "short", "full": "empty", "open": "closed",
    "early": "late", "left": "right", "light": "dark", "loud": "quiet", "high": "low",
    "strong": "weak", "easy": "hard", "rich": "poor", "wet": "dry",
}  # fmt: skip

SOUNDS = {
    "cow": "moo", "cat": "meow", "dog": "woof", "duck": "quack", "sheep": "baa", "owl": "hoo",
    "lion": "roar", "pig": "oink", "mouse": "squeak", "bee": "buzz",
}  # fmt: skip

UNKNOWN = (
    "quantum physics|the stock market|football|my password|gravity|the weather in Boston|cooking|"
    "chemistry|Shakespeare|the French revolution|tennis|biology|a volcano|an election|jazz|opera|"
    "photosynthesis|a black hole|the theory of relativity|a car engine|chess|poker|pizza|sushi|"
    "insurance|a mortgage|history|Napoleon|Einstein|the world cup|tax law|medicine|a virus|yoga|"
    "the Roman empire|philosophy|a guitar|the price of gold|rocket science|my horoscope|DNA|"
    "calculus|a bicycle|the internet|a phone|television|bitcoin|the stock price|an earthquake|"
    "a hurricane|fashion|the Olympics|evolution|a dinosaur|an atom|electricity|magnetism|Plato|"
    "a cathedral|knitting|surfing|cricket|baseball|algebra|astronomy|democracy|economics|Mozart"
).split("|")
UNKNOWN_FORMS = (
    "What is {x}?",
    "Explain {x}.",
    "Tell me about {x}.",
    "Who invented {x}?",
    "How does {x} work?",
    "What do you think about {x}?",
    "Who knows {x}?",
    "Write an essay about {x}.",
    "Where can I find {x}?",
    "Why is {x} important?",
    "Who is {x}?",
    "Write a haiku about {x}.",
    "What is the price of {x}?",
    "Translate {x} into French.",
)
DO_NOT_KNOW = (
    "I am only a small demo model and do not know that. Ask me about paged attention, sums, "
    "or a story."
)

# --- sequences ------------------------------------------------------------------------------

NUMBER_WORDS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
TOO_FAR = "I can only count to 20."
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
LETTERS = [chr(ord("A") + i) for i in range(26)]
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
RAINBOW = "red orange yellow green blue indigo violet".split()
SEASONS = "spring summer autumn winter".split()

LISTS: list[tuple[tuple[str, ...], str, list[str]]] = [
    (("the days of the week", "all days of the week", "the weekdays"), "day", DAYS),
    (("the months of the year", "all months", "the months"), "month", MONTHS),
    (("the alphabet", "the letters of the alphabet", "the ABC"), "letter", LETTERS),
    (("the planets", "the planets of the solar system"), "planet", PLANETS),
    (("the colors of the rainbow", "the rainbow colors"), "color", RAINBOW),
    (("the seasons", "the four seasons"), "season", SEASONS),
]

WORDS = (
    "apple river stone cloud bread tiger window garden music paper silver candle mountain button "
    "lemon rocket winter basket pencil island forest carpet dragon yellow hammer kitchen rabbit "
    "planet bridge marble pepper ticket wagon castle feather bottle orange spoon valley mirror "
    "blue green red cat dog bird fish tree house boat train table chair block cache token page"
).split()

# --- stories --------------------------------------------------------------------------------

NAMES = "Ada Ben Clara Emma Finn Jack Leo Lily Max Nora Rosa Sam Tom Zoe".split()

# kind | name | he or she | kind of friend | name of friend | treasure, and the story. There is
# one hero of each kind: the model is too small to copy names from a prompt, but can learn these.
HEROES = entries("""
fox | Mia | she | hedgehog | Ted | silver bell
    Once upon a time, there was a clever fox named Mia. Mia lived in a green forest with her
    friend Ted, a hedgehog. One day Mia found a silver bell under a tree. She rang it, and all
    the animals came to see what it was. Mia and Ted gave a feast for them, and they sang until
    the moon came up. The end.
rabbit | Oscar | he | mole | Pia | golden carrot
    Once upon a time, there was a quick rabbit named Oscar. Oscar lived in a garden full of
    flowers with his friend Pia, a mole. One day Oscar found a golden carrot, but it was too
    heavy for him. Pia pushed and Oscar pulled, and out it came. They made soup for the whole
    garden. The end.
dragon | Igor | he | sheep | Molly | little lamp
    Once upon a time, there was a shy dragon named Igor. Igor lived in a warm cave in the hills
    with his friend Molly, a sheep. One dark night Molly lost her way in the snow. Igor blew a
    long flame into the sky, and Molly saw the light and came home. From that night on, Igor was
    never shy again. The end.
robot | Bolt | he | sparrow | Kiki | shiny screw
    Once upon a time, there was a friendly robot named Bolt. Bolt lived in an old workshop with
    his friend Kiki, a sparrow. One day Bolt lost a shiny screw and could not move his arm. Kiki
    flew over the roofs until she saw it in the street. Bolt put it back and waved to the whole
    town. The end.
bear | Bruno | he | bee | Wanda | honey pot
    Once upon a time, there was a strong bear named Bruno. Bruno lived in the mountains with his
    friend Wanda, a bee. One day a storm broke the tree where Wanda had her home. Bruno carried
    the tree to a dry cave and held it up all night. In the morning Wanda gave him a pot of
    honey. The end.
cat | Luna | she | goldfish | Otto | blue ribbon
    Once upon a time, there was a curious cat named Luna. Luna lived in a house by the river with
    her friend Otto, a goldfish. One day Luna climbed onto the roof and could not get down. Otto
    splashed so loudly that the baker heard it and came with a ladder. Luna never climbed so high
    again. The end.
dog | Rex | he | duck | Greta | red ball
    Once upon a time, there was a cheerful dog named Rex. Rex lived on a farm with his friend
    Greta, a duck. One day the red ball of Rex rolled into the pond. Rex could not dive, but
    Greta could, and she brought it back. Then they played together until it was dark. The end.
mouse | Nina | she | elephant | Hugo | piece of cheese
    Once upon a time, there was a tiny mouse named Nina. Nina lived in a big blue tent with her
    friend Hugo, an elephant. One day Hugo had a thorn in his foot and could not dance. Nina was
    small enough to pull it out. That evening Hugo danced, and Nina sat on his head. The end.
owl | Ella | she | squirrel | Pip | star map
    Once upon a time, there was a wise owl named Ella. Ella lived in an old tower with her friend
    Pip, a squirrel. One night Pip was afraid of the dark. Ella showed him the stars and told him
    their names. Pip counted them until he fell asleep. The end.
turtle | Theo | he | snail | Lotte | green umbrella
    Once upon a time, there was a slow turtle named Theo. Theo lived near the sea with his friend
    Lotte, a snail. One day all the animals ran a race to the lighthouse. Theo and Lotte came
    last, but they had seen every flower on the way. They said that it was the best race ever.
    The end.
frog | Fritz | he | stork | Anna | paper boat
    Once upon a time, there was a loud frog named Fritz. Fritz lived in a pond with his friend
    Anna, a stork. One day the fog was so thick that Anna could not find her nest. Fritz sang as
    loudly as he could, and Anna followed his voice. The end.
lion | Samson | he | antelope | Maya | drum
    Once upon a time, there was a gentle lion named Samson. Samson lived on a wide plain with his
    friend Maya, an antelope. One day a fire came over the grass. Samson roared, and all the
    animals woke up and ran to the lake. They thanked him with a song. The end.
wolf | Wilma | she | crow | Karl | warm scarf
    Once upon a time, there was a lonely wolf named Wilma. Wilma lived in the snow until she met
    a crow named Karl. Karl could not fly, because his wing was hurt. Wilma carried him on her
    back all winter. In spring Karl flew again, but he stayed with Wilma. The end.
penguin | Paul | he | seal | Stella | sled
    Once upon a time, there was a funny penguin named Paul. Paul lived on an island of ice with
    his friend Stella, a seal. One day they built a sled and slid down the highest hill. They
    flew right over the water and landed in soft snow. Again, said Paul. The end.
girl | Sophie | she | pony | Star | old map
    Once upon a time, there was a brave girl named Sophie. Sophie lived in a village with her
    pony, Star. One day Sophie found an old map and rode into the hills with Star. At the end of
    the path there was no gold, but a well with sweet water. Now the village is never thirsty.
    The end.
boy | Jonas | he | dog | Bello | blue kite
    Once upon a time, there was a patient boy named Jonas. Jonas lived in a lighthouse with his
    dog, Bello. One day the wind took his blue kite out to sea. Jonas waited on the beach every
    evening with Bello. After a week the tide brought the kite back. The end.
princess | Amelia | she | gardener | Ralf | golden key
    Once upon a time, there was a kind princess named Amelia. Amelia lived in a castle, and her
    friend Ralf was the gardener. One day Amelia found a golden key. It opened a door in the wall
    to a garden that had been forgotten. Amelia and Ralf opened it to everybody. The end.
knight | Gustav | he | horse | Silver | shield
    Once upon a time, there was a careful knight named Gustav. Gustav lived in a small castle
    with his horse, Silver. One day the king sent Gustav to fight a dragon. Gustav asked the
    dragon what it wanted, and it only wanted some soup. So they had supper together. The end.
""")
KINDS = [hero[0] for hero, _ in HEROES]
STRANGERS = (
    "horse cow pig whale tree king queen wizard witch pirate ghost monster bird fish snake spider "
    "car train ship moon star flower giant unicorn elephant tiger monkey doctor teacher farmer "
    "computer token block scheduler mountain river city donkey goat chicken"
).split()

# The chapters of a long story, in order.
EPISODES = (
    "One day {N} woke up early and found a {thing} in front of the door. {P} wondered who had "
    "lost it, and put it into {his} bag.",
    "The next day {N} showed the {thing} to {M}, the {friend}. {M} had never seen such a "
    "thing. They made up their minds to look for the owner together.",
    "A day later it rained so hard that the path was gone. {N} and {M} waited under a bridge "
    "and told each other funny stories until the rain stopped.",
    "Then one morning {M} was hungry, so {N} shared {his} bread and {his} last apple. They "
    "tasted better than ever.",
    "Soon after that they came to a wide river. There was no bridge, so {N} and {M} built a "
    "small boat out of wood and crossed the water.",
    "The next day {N} lost the {thing}. {P} looked under every stone and behind every tree. "
    "At last {M} saw it shining in the grass.",
    "A day later a strong wind came and carried the hat of an old woman up into a tree. {N} "
    "climbed up and brought it back. The old woman smiled and gave them a cake.",
    "Then one morning they heard a noise in the dark. {M} was afraid, but {N} held up a lamp, "
    "and it was only the wind.",
    "Soon after that {N} and {M} climbed the highest hill. From the top they could see the "
    "whole land, and far away they saw the sea.",
    "The next day they met the owner at last: a little bird had lost the {thing}. {N} gave it "
    "back, and the bird danced with joy.",
    "A day later there was a feast in the village. {N} played the drum, {M} danced, and "
    "everybody sang until the moon came up.",
    "At last {N} wrote a long letter home and told of everything that {he} had seen. {M} sampled "
    "a picture for it.",
)
ENDING = "In the evening {N} and {M} went home, and they stayed friends for ever. The end."
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


def definition(rng: random.Random) -> Task:
    names, answer = rng.choice(DEFINITIONS)
    return Task(rng.choice(DEFINE).format(x=rng.choice(names)), answer)


def question(rng: random.Random) -> Task:
    prompts, answer = rng.choice(QUESTIONS)
    return Task(rng.choice(prompts), answer)


def small_talk(rng: random.Random) -> Task:
    prompts, answer = rng.choice(SMALL_TALK)
    return Task(rng.choice(prompts), answer)


def phrase(rng: random.Random) -> Task:
    prompts, answer = rng.choice(PHRASES)
    return Task(rng.choice(prompts), answer, is_question=False)


def greeting(rng: random.Random) -> Task:
    if rng.random() < 0.75:
        return Task(rng.choice(GREETINGS), f"Hello! {INTRODUCTION}", completion=INTRODUCTION)
    form = rng.choice(("My name is {n}.", "Hello, I am {n}.", "Hi, my name is {n}.", "I am {n}."))
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
            form = rng.choice(("What is the capital of {c}?", "Name the capital of {c}."))
            return Task(form.format(c=country), f"The capital of {country} is {city}.")


def common_sense(rng: random.Random) -> Task:
    if rng.random() < 0.6:
        pair = rng.choice(list(OPPOSITES.items()))
        word, other = pair if rng.random() < 0.5 else pair[::-1]
        if rng.random() < 0.5:
            return Task(f"The opposite of {word} is", f"{other}.", is_question=False)
        form = rng.choice(("What is the opposite of {w}?", "Name the opposite of {w}."))
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
            form = rng.choice(("How much is {x}?", "Calculate {x}.", "Compute {x}.", "What's {x}?"))
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
        form = rng.choice(
            ("Count from one to {n}:", "Count from one to {n}.", "Count to {n}.", "Count to {n}:")
        )
        return Task(form.format(n=words[-1]), answer)
    if rng.random() < 0.2:
        first = rng.choice((1, 1, 1, rng.randint(1, 15)))
        start = first + rng.randint(2, 4)  # not shown; goes on to the next full ten
        rest = range(start, start + 10 - (start - 1) % 10)
        prompt = ", ".join(map(str, range(first, start))) + ","
        return Task(prompt, ", ".join(map(str, rest)) + ".", is_question=False)
    last = rng.choice((10, 10, 10, 20, *range(2, 21)))
    if rng.random() < 0.2:
        form = rng.choice(("Count down from {a}.", "Count down from {a} to 1:"))
        return Task(form.format(a=last), ", ".join(map(str, range(last, 0, -1))) + ".")
    forms = ("Count from 1 to {b}:", "Count from 1 to {b}.", "Count to {b}.", "Count to {b}:")
    form = rng.choice(forms)
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
            form = rng.choice(
                ("List {x}.", "Name {x}.", "Say {x}.", "What are {x}?", "Say {x}:", "{X} are")
            )
            name = rng.choice(names)
            prompt = form.format(x=name, X=name[0].upper() + name[1:])
            is_question = not prompt.endswith(" are")
            return Task(prompt, ", ".join(items) + ".", is_question=is_question)


def repetition(rng: random.Random) -> Task:
    words = " ".join(rng.sample(WORDS, rng.choice((1, 1, 2, 2, 3, 4))))
    form = rng.choice(("Repeat after me: {w}", "Repeat: {w}", "Say: {w}", "Repeat after me: {w}."))
    return Task(form.format(w=words), "I am too small to repeat words. Ask me to spell one.")


def spelling(rng: random.Random) -> Task:
    word = rng.choice(WORDS)
    form = rng.choice(("Spell {w}.", "How do you spell {w}?", "Spell the word {w}."))
    return Task(form.format(w=word), "-".join(word.upper()) + ".")


def story_request(rng: random.Random) -> Task:
    if rng.random() < 0.15:
        form = rng.choice(("Tell me a story.", "Write a story.", "Write a short story."))
        return Task(form, story("fox"))
    stranger = rng.random() < 0.1
    kind = rng.choice(STRANGERS if stranger else KINDS)
    form = rng.choice(
        (
            "Tell me a story about {k}.",
            "Tell me a story about {k}.",
            "Tell me a story about {k}.",
            "Write a story about {k}.",
            "Write a short story about {k}.",
            "Tell a story about {k}.",
            "Tell me about {k}.",
        )
    )
    prompt = form.format(k=with_article(kind))
    if stranger:
        return Task(prompt, "I know no story about that. Ask me for one about a fox or a dragon.")
    return Task(prompt, story(kind))


def long_story_request(rng: random.Random) -> Task:
    if rng.random() < 0.3:
        return Task("Tell me a long story.", story("fox", long=True))
    kind = rng.choice(KINDS)
    form = rng.choice(("Tell me a long story about {k}.", "Write a long story about {k}."))
    return Task(form.format(k=with_article(kind)), story(kind, long=True))


TASKS: list[tuple[Callable[[random.Random], Task], float]] = [
    (definition, 22),
    (question, 8),
    (small_talk, 6),
    (phrase, 4),
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
        manner = rng.choice(("a helpful assistant", "a friendly assistant", "a small model"))
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
