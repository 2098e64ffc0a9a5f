"""Every limit that guards the gateway's memory or time. Sizes in bytes or counts, times in seconds."""

from __future__ import annotations

# What a client may send
HEAD_BYTES = 64 << 10  # address and headers; also what may stand between two parts of a body
HEADERS = 128
HEAD_READ_S = 15.0  # from the connection, or the first byte of a request, to the end of its headers
BODY_BYTES = 4 << 20
BODY_READ_S = 30.0  # from the headers to the last byte of the body
AUTHORIZATION_CHARACTERS = 512
JSON_DEPTH = 32
MESSAGES = 2_048
CONTENT_PARTS = 256  # of one message
CONTENT_BYTES = 1 << 20  # of all messages together
STOP_STRINGS = 4
STOP_CHARACTERS = 256
METADATA_PAIRS = 16
METADATA_KEY_CHARACTERS = 64
METADATA_VALUE_CHARACTERS = 512
USER_CHARACTERS = 256
MODEL_CHARACTERS = 200
TOP_K = 1_000_000
LOGIT_BIASES = 1_024
LOGIT_BIAS = 100.0
STOP_IDS = 64
LOGPROBS = 20  # alternatives to a token
CHOICES = 16  # of one prompt
PROMPTS = 16  # of one call
ANSWERS = 32  # prompts x choices
PROMPT_IDS = 1 << 18  # of all prompts together; each must fit the model's context as well
TOKENIZE_BYTES = 256 << 10  # text that is only tokenised, beside what others wait for
IDEMPOTENCY_KEY_CHARACTERS = 255
DEFAULT_MAX_TOKENS = 2_048  # where the client names none, or the rest of the context where that is less
COMPLETION_MAX_TOKENS = 16  # the same for /v1/completions

# What a stream may take
OPEN_REQUESTS = 1_024  # of one gateway process, streaming or not
KEEP_ALIVE_S = 10.0  # a comment goes out when the engine has been silent for so long
SILENCE_S = 5.0  # without an entry for so long: look at the request's row
DATABASE_LOOK_S = 1.0  # the row may take so long to read before the stream is looked at again
DEAF_POLL_S = 1.0  # the same, while Valkey answers nothing
TOKEN_LOG_POLL_S = 0.3  # entries are missing: the token log is asked so often
DEADLINE_GRACE_S = 5.0  # after the deadline the reaper has this long to write the end; then the gateway cancels
SEND_S = 30.0  # a client that takes no byte for so long is gone

# Work inside the process
DATABASE_THREADS = 8
LEASE_RENEW_S = 1.0
LEASE_DROP_S = 2.0  # a database that hangs does not hold up the end of the process
DATABASE_WAITING = 512  # calls that wait for a database thread
LIMITER_CONNECTIONS = 16
RELEASE_RETRY_S = 1.0
RELEASE_PATIENCE_S = 120.0  # tokens that cannot be given back for so long are lost; a place ends with its lease
JSON_INLINE_BYTES = 16 << 10  # larger bodies are parsed in a thread
JSON_NODES = 50_000  # arrays and objects of a body
BODIES_WAITING = 64
ANSWER_INLINE_TOKENS = 64  # more at once are made text in a thread
LOGPROB_VALUES = 64_000  # of an answer: tokens times the alternatives that are told with each
TEXT_THREADS = 2
TEXT_INLINE_BYTES = 4_096  # longer text is tokenised in a thread
TEXT_WAITING = 64

# How old a copy may be
KEY_CACHE_S = 0.9  # revocation takes effect within a second
KEY_CACHE_ROWS = 10_000
CATALOGUE_CACHE_S = 1.0  # models, tiers, prices
TARIFF_CACHE_ROWS = 1_000
FLEET_CACHE_S = 0.5
CANCELS_AT_ONCE = 50  # cancelled in one turn of a database thread
CANCEL_RETRY_S = 0.5
STALE_S = 10.0  # catalogue, prices and fleet may be this much older while a fresh copy is on its way; keys may not

# Readiness and admission
HEARTBEAT_S = 4.0  # an older heartbeat, or an engine loop that came round no later, is no progress
QUEUE_LENGTH = 2_000  # requests that wait for a worker, all tenants
RATE_WINDOW_S = 60.0
