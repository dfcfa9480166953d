// How fast do the tokenizers encode on one core, against Hugging Face's engine?
//   bench_tokenizer [TOKENIZER ...]
// Without arguments: bytes and the tokenizers of ../shared/data/tokenizers.
// Hugging Face's rate is shown where python3, or $PYTHON, has the package
// tokenizers (bench/peers/tokenizers.py).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/tokenizer.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

const fs::path kSource = BRIGADE_SOURCE_DIR;
constexpr size_t kMegabyte = 1'000'000;

struct Rate {
  double seconds = 0;  // of the best pass
  size_t tokens = 0;
};

// Cut at blank lines, at least 4096 bytes each, as bench/peers/tokenizers.py
// does.
std::vector<std::string> documents_of(const std::string& text) {
  std::vector<std::string> documents;
  for (size_t begin = 0; begin < text.size();) {
    const size_t blank = text.find("\n\n", begin + 4096);
    const size_t end = blank == std::string::npos ? text.size() : blank + 2;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return documents;
}

Rate measure(
    const brigade::Tokenizer& tokenizer,
    const std::vector<std::string>& documents) {
  Rate rate{.seconds = 1e9};
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    rate.tokens = 0;
    for (const std::string& document : documents)
      rate.tokens += tokenizer.encode(document).size();
    const std::chrono::duration<double> passed = Clock::now() - start;
    rate.seconds = std::min(rate.seconds, passed.count());
  } while (Clock::now() - begin < std::chrono::seconds(2));
  return rate;
}

std::optional<Rate> measure_peer(
    const std::string& tokenizer,
    const fs::path& text) {
  const std::string command = fmt::format(
      "${{PYTHON:-python3}} '{}' '{}' '{}' 2>/dev/null",
      (kSource / "bench/peers/tokenizers.py").string(),
      tokenizer,
      text.string());
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (!pipe)
    return std::nullopt;
  Rate rate;
  const int fields = std::fscanf(pipe, "%lf %zu", &rate.seconds, &rate.tokens);
  const bool ended_well = ::pclose(pipe) == 0;
  return ended_well && fields == 2 ? std::optional(rate) : std::nullopt;
}

fs::path english_text() {
  for (const fs::path& path :
       {kSource / "../shared/data/tinyshakespeare.txt",
        fs::path("/usr/share/doc/jargon-text/jargon.txt"),
        kSource / "README.md"}) {
    if (fs::exists(path))
      return path;
  }
  throw brigade::DataError("[bench_tokenizer] no English text found");
}

void report(const std::string& spec, const fs::path& english_path) {
  const auto tokenizer = brigade::load_tokenizer(spec);
  std::printf("\n%s\n", tokenizer->description().c_str());
  const std::string english = brigade::read_text_file(english_path);
  const std::array<std::pair<const char*, std::vector<std::string>>, 3> texts =
      {{{"English", documents_of(english)},
        {"1 MB of \"a\"", {std::string(kMegabyte, 'a')}},
        {"1 MB of spaces", {std::string(kMegabyte, ' ')}}}};
  for (const auto& [name, documents] : texts) {
    const Rate rate = measure(*tokenizer, documents);
    double megabytes = 0;
    for (const std::string& document : documents)
      megabytes += static_cast<double>(document.size()) / 1e6;
    std::printf(
        "  %-14s %8.1f MB/s  %9.0f tokens/ms",
        name,
        megabytes / rate.seconds,
        static_cast<double>(rate.tokens) / 1e3 / rate.seconds);
    const bool compares =
        &documents == &texts[0].second && fs::path(spec).extension() == ".json";
    const auto peer =
        compares ? measure_peer(spec, english_path) : std::nullopt;
    if (peer) {
      std::printf(
          "   Hugging Face %.1f MB/s, ratio %.1f%s",
          megabytes / peer->seconds,
          peer->seconds / rate.seconds,
          peer->tokens == rate.tokens ? "" : " (OTHER TOKENS)");
    } else if (compares) {
      std::printf("   (no Python with the package tokenizers)");
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> specs(argv + 1, argv + argc);
    if (specs.empty()) {
      specs = {"bytes"};
      const fs::path folder = kSource / "../shared/data/tokenizers";
      if (fs::exists(folder)) {
        for (const auto& entry : fs::directory_iterator(folder))
          specs.push_back(entry.path().string());
      }
    }
    std::sort(specs.begin(), specs.end());
    const fs::path english = english_text();
    std::printf("English: %s\n", english.c_str());
    for (const std::string& spec : specs)
      report(spec, english);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
