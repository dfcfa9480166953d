// The score of a Unigram token as Hugging Face's engine reads it.
#pragma once

namespace brigade {

// The engine's JSON reader takes the digits as one integer and divides by a
// power of ten, which rounds twice: of scores with 17 digits every eighth is
// the neighbour of the nearest double. Segmentations whose scores are equal but
// for rounding are common ("a"+"aa" and "aa"+"a"), so the last bit decides
// between them. `nearest` is the correctly rounded value; its shortest decimal
// form stands for the digits in the file.
double engine_score(double nearest);

}  // namespace brigade
