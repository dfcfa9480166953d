// The tokens of a task's requests, as lm-evaluation-harness makes them.
//
// What stands before a context or a text is what the tokenizer's template puts
// there; a text that begins with the start token's own text gets no second one.
// An empty context is the start token (start_token()).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/tasks.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// Context and choice are tokenized together, and what is beyond the context's
// own tokens is the choice's; white space at a context's end belongs to the
// choice. Throws DataError where a choice has no token, or more than
// `most_tokens`, or where an empty context finds no start token.
Continuations tokenize(
    const TaskRequest& request,
    const Tokenizer& tokenizer,
    int64_t most_tokens);

// The text after the start token, in windows of at most `most_tokens`
// predictions; each token is predicted once. The last window begins earlier
// than where the one before it ended, so that it sees as many tokens as they
// do. Throws DataError where there is no start token.
std::vector<ScoredWindow> rolling_windows(
    const std::string& text,
    const Tokenizer& tokenizer,
    int64_t most_tokens);

}  // namespace brigade
