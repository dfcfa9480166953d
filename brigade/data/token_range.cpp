#include "brigade/data/token_range.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/files/file.h"
#include "brigade/files/lock.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kTokensPerStep = uint64_t{1} << 22;
// Scanning fewer takes no longer than the cache does.
constexpr uint64_t kLeastCachedTokens = uint64_t{1} << 24;

TokenIdRange scan(
    const TokenDataset& dataset,
    const TokenScanOptions& options) {
  TokenIdRange range;
  const uint64_t total = dataset.num_tokens();
  for (uint64_t begin = 0; begin < total; begin += kTokensPerStep) {
    const uint64_t count = std::min(kTokensPerStep, total - begin);
    const TokenIdRange part = dataset.range_of(begin, count);
    range = begin == 0 ? part
                       : TokenIdRange{
                             std::min(range.lowest, part.lowest),
                             std::max(range.highest, part.highest)};
    if (options.on_progress)
      options.on_progress({dataset.path().string(), begin + count, total});
  }
  return range;
}

// Identifies the version of a file without reading it.
json identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return nullptr;
  return {
      {"path", path.string()},
      {"size_bytes", status.st_size},
      {"inode", status.st_ino},
      {"modified_s", status.st_mtim.tv_sec},
      {"modified_ns", status.st_mtim.tv_nsec}};
}

std::optional<TokenIdRange> read_cached(
    const fs::path& entry,
    const json& identity) {
  if (!fs::exists(entry))
    return std::nullopt;
  const auto cached = parse_json_or_nothing(read_text_file(entry));
  const bool is_known =
      cached && cached->is_object() && cached->contains("file") &&
      cached->at("file") == identity && cached->contains("lowest") &&
      cached->at("lowest").is_number_integer() && cached->contains("highest") &&
      cached->at("highest").is_number_integer();
  if (!is_known)
    return std::nullopt;
  return TokenIdRange{
      cached->at("lowest").get<int64_t>(),
      cached->at("highest").get<int64_t>()};
}

}  // namespace

TokenIdRange find_token_range(
    const TokenDataset& dataset,
    const TokenScanOptions& options) {
  if (options.cache_dir.empty() || dataset.num_tokens() < kLeastCachedTokens)
    return scan(dataset, options);
  const fs::path path = fs::absolute(dataset.path());
  const fs::path folder = options.cache_dir / "token_ranges";
  const fs::path entry =
      folder / fmt::format("{:016x}.json", fnv1a_64(path.string()));
  const json identity = identity_of(path);
  std::optional<TokenIdRange> range;
  try {
    fs::create_directories(folder);
    const FileLock lock =
        FileLock::wait(with_suffix(entry, ".lock"), FileLock::File::kRemove);
    range = read_cached(entry, identity);
    if (range)
      return *range;
    range = scan(dataset, options);
    const json content = {
        {"file", identity},
        {"lowest", range->lowest},
        {"highest", range->highest}};
    write_text_file(entry, json_to_text(content, 2));
  } catch (const fs::filesystem_error&) {
    // A cache that cannot be used costs the next run a scan.
  } catch (const StorageError&) {
  }
  return range ? *range : scan(dataset, options);
}

void check_token_ids(
    const TokenDataset& dataset,
    int64_t vocab_size,
    const TokenScanOptions& options) {
  const TokenIdRange range = find_token_range(dataset, options);
  if (range.lowest >= 0 && range.highest < vocab_size)
    return;
  std::vector<int64_t> ids;
  for (uint64_t begin = 0; begin < dataset.num_tokens();
       begin += kTokensPerStep) {
    ids.resize(std::min(kTokensPerStep, dataset.num_tokens() - begin));
    dataset.read(begin, ids);  // throws at the first that is outside
  }
  BRIGADE_ASSERT(
      false,
      "{} has ids {} to {}",
      dataset.path().string(),
      range.lowest,
      range.highest);
}

}  // namespace brigade
