// Does text that is tokenized while training hold a step up?
//   bench_text [TOKENIZER [TEXT ...]]
// Reads the batches of `dataset.text` as training does, in order and shuffled
// in blocks, as fast as they come: with nothing known of the text, and again
// from the tokens that were kept. A step that takes 100,000 tokens per second
// waits for none of it where the rate is above that. Without arguments: bytes,
// and the Jargon File (Debian's jargon-text).
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "brigade/data/loader.h"
#include "brigade/data/text_windows.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSeqLength = 1024;
constexpr int64_t kRows = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// An epoch's batches: how long the first took, and the rate of all.
void measure(
    const char* what,
    const brigade::TextInput& source,
    const fs::path& folder,
    int64_t shuffle_block) {
  const auto begin = Clock::now();
  const auto tokens = std::make_shared<brigade::TextTokens>(
      source, brigade::TextTokensOptions{.folder = folder});
  const auto windows = std::make_shared<brigade::TextWindowSource>(
      tokens,
      kSeqLength,
      brigade::BatchSamplerOptions{
          .shuffle = shuffle_block > 0, .shuffle_block = shuffle_block});
  brigade::Loader loader(windows, {.layout = {.micro_batch_size = kRows}});
  loader.next();
  const double first = seconds_since(begin);
  const uint64_t batches = windows->samples_per_epoch() / kRows;
  for (uint64_t i = 1; i < batches; ++i)
    loader.next();
  const double seconds = seconds_since(begin);
  fmt::print(
      "{:34} first batch after {:7.1f} ms, {:9.0f} tokens/s\n",
      what,
      first * 1e3,
      static_cast<double>(batches * kRows * kSeqLength) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = fs::temp_directory_path() / "brigade_text_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return 1;
  brigade::TextInput source{
      .paths = {"/usr/share/doc/jargon-text/jargon.txt.gz"},
      .tokenizer = argc > 1 ? argv[1] : "bytes"};
  if (argc > 2)
    source.paths.assign(argv + 2, argv + argc);
  for (const int64_t block : {0, 64}) {
    const std::string order =
        block == 0 ? "in order" : "shuffled in blocks of 64";
    fs::remove_all(folder);
    measure((order + ", new").c_str(), source, folder, block);
    measure((order + ", kept").c_str(), source, folder, block);
  }
  fs::remove_all(folder);
}
