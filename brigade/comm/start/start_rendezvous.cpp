#include "brigade/comm/start/start_rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <thread>

#include "brigade/comm/start/packed_texts.h"

namespace brigade {
namespace {

constexpr std::chrono::milliseconds kPause{5};
// The time that rank 0 leaves the others to read an answer.
constexpr std::chrono::milliseconds kReadTime{1000};
// The number of ranks that a message names; more would fill a screen.
constexpr size_t kNamedRanks = 16;
constexpr const char* kFailed = "failed";
constexpr char kSizeEnd = ' ';

// Puts a rank's text behind the number of ranks that it was started for.
std::string with_size(int size, const std::string& text) {
  return std::to_string(size) + kSizeEnd + text;
}

// The number in front of a text; -1 if there is none.
int size_before(const std::string& text) {
  int size = -1;
  std::from_chars(text.data(), text.data() + text.size(), size);
  return size;
}

std::string without_size(const std::string& text) {
  return text.substr(std::min(text.size(), text.find(kSizeEnd) + 1));
}

// A failed rank's number, host, exit code and message.
std::string pack_failure(
    int rank,
    const std::string& host,
    ExitCode code,
    const std::string& message) {
  return pack_texts(
      {std::to_string(rank),
       host,
       std::to_string(static_cast<int>(code)),
       message});
}

std::string list(const std::vector<int>& ranks) {
  const size_t shown = std::min(ranks.size(), kNamedRanks);
  return fmt::format(
      "rank{} {}{}",
      ranks.size() > 1 ? "s" : "",
      fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(shown), ", "),
      shown < ranks.size() ? ", ..." : "");
}

}  // namespace

StartRendezvous::StartRendezvous(
    const StorePtr& store,
    StartRendezvousOptions options)
    : store_(store->with_prefix("start")), options_(std::move(options)) {}

std::vector<std::string> StartRendezvous::exchange(const std::string& mine) {
  if (claim_.empty())
    claim();
  const std::string round = std::to_string(++round_);
  store_->set(
      fmt::format("{}/rank/{}", round, options_.rank),
      with_size(options_.size, mine));
  const std::string key = fmt::format("{}/answer", round);
  if (options_.rank == 0) {
    const std::string answer = collect(round);
    check_claim();
    store_->set(key, answer);
    if (answer.front() != '+')
      wait_for_readers();
    return read(answer);
  }
  std::string answer;
  try {
    answer = store_->get(key);
  } catch (const CommError&) {
    const std::string address = store_->address();
    throw CommError(fmt::format(
        "[start] rank {} on host {}: rank 0{} did not answer within {} s, or "
        "was lost; see its output",
        options_.rank,
        options_.host,
        address.empty() ? "" : " at " + address,
        std::chrono::duration_cast<std::chrono::seconds>(options_.timeout)
            .count()));
  }
  check_claim();
  store_->set(fmt::format("{}/read/{}", round, options_.rank), "");
  return read(answer);
}

void StartRendezvous::claim() {
  std::random_device random;
  claim_ = fmt::format(
      "process {} on host {} ({:08x})", ::getpid(), options_.host, random());
  // A file store exists once a key is set; before that a look-up would wait.
  store_->set("came", "");
  const std::string key = fmt::format("claim/{}", options_.rank);
  if (store_->contains(key))
    check_claim();
  store_->set(key, claim_);
}

void StartRendezvous::check_claim() {
  const std::string holder =
      store_->get(fmt::format("claim/{}", options_.rank));
  if (holder == claim_)
    return;
  throw ConfigError(fmt::format(
      "[start] rank {} was started twice: {} is that rank already where this "
      "process on host {} came to meet its peers. Start each rank once, and "
      "give each job its own MASTER_PORT",
      options_.rank,
      holder.substr(0, holder.rfind(" (")),
      options_.host));
}

std::string StartRendezvous::collect(const std::string& round) {
  std::vector<std::optional<std::string>> texts(
      static_cast<size_t>(options_.size));
  size_t known = 0;
  const auto deadline = Clock::now() + options_.timeout;
  auto next_report = Clock::now() + options_.report_every;
  while (true) {
    if (store_->contains(kFailed))
      return "-" + store_->get(kFailed);
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      const std::string key = fmt::format("{}/rank/{}", round, rank);
      if (!texts[rank] && store_->contains(key)) {
        const std::string text = store_->get(key);
        if (const int size = size_before(text); size != options_.size)
          return refuse_size(static_cast<int>(rank), size);
        texts[rank] = without_size(text);
        ++known;
      }
    }
    if (known == texts.size())
      break;
    const auto now = Clock::now();
    if (now >= deadline) {
      // The ranks that are there wait for the answer; others may not come any
      // more.
      options_.linger = std::min(options_.linger, kReadTime);
      const std::string message = fmt::format(
          "[start] {} of {} ranks joined within {} s; {} did not. Look for "
          "their errors, and whether their hosts can connect to rank 0's "
          "host {}",
          known,
          texts.size(),
          std::chrono::duration_cast<std::chrono::seconds>(options_.timeout)
              .count(),
          missing_ranks(texts),
          options_.host);
      return "-" + pack_failure(-1, options_.host, ExitCode::kComm, message);
    }
    if (now >= next_report && options_.on_progress) {
      options_.on_progress(fmt::format(
          "{} of {} ranks have joined; waiting for {}",
          known,
          texts.size(),
          missing_ranks(texts)));
      next_report = now + options_.report_every;
    }
    std::this_thread::sleep_for(kPause);
  }
  std::vector<std::string> all;
  for (auto& text : texts)
    all.push_back(std::move(*text));
  return "+" + pack_texts(all);
}

std::string StartRendezvous::refuse_size(int rank, int size) {
  const std::string message = fmt::format(
      "[start] rank {} was started as one of {} ranks, rank 0 on host {} as "
      "one of {}: give all the same WORLD_SIZE",
      rank,
      size,
      options_.host,
      options_.size);
  // All ranks that may come wait for the answer.
  options_.size = std::max(options_.size, size);
  return "-" + pack_failure(-1, options_.host, ExitCode::kConfig, message);
}

std::string StartRendezvous::missing_ranks(
    const std::vector<std::optional<std::string>>& texts) const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank])
      missing.push_back(static_cast<int>(rank));
  }
  return list(missing);
}

std::vector<std::string> StartRendezvous::read(
    const std::string& answer) const {
  const std::string_view rest = std::string_view(answer).substr(1);
  const std::vector<std::string> texts = unpack_texts(rest);
  if (answer.front() == '+') {
    // Rank 0 did not expect this rank.
    if (texts.size() != static_cast<size_t>(options_.size)) {
      throw ConfigError(fmt::format(
          "[start] rank {} on host {} was started as one of {} ranks, rank 0 "
          "as one of {}: give all the same WORLD_SIZE, and each job its own "
          "MASTER_PORT",
          options_.rank,
          options_.host,
          options_.size,
          texts.size()));
    }
    return texts;
  }
  if (texts.size() != 4)
    throw CommError("[start] the store holds an answer that is damaged");
  const int rank = std::stoi(texts[0]);
  const auto code = static_cast<ExitCode>(std::stoi(texts[2]));
  if (rank < 0)
    throw Error(code, texts[3]);
  throw Error(
      code,
      fmt::format(
          "[start] rank {} on host {} could not start: {}",
          rank,
          texts[1],
          texts[3]));
}

void StartRendezvous::wait_for_readers() {
  if (options_.rank != 0)
    return;
  const auto end = Clock::now() + std::min(options_.linger, options_.timeout);
  std::vector<int> waiting;
  for (int rank = 1; rank < options_.size; ++rank)
    waiting.push_back(rank);
  const std::vector<std::string> failed =
      store_->contains(kFailed) ? unpack_texts(store_->get(kFailed))
                                : std::vector<std::string>{};
  const int failed_rank = failed.empty() ? -1 : std::stoi(failed[0]);
  while (Clock::now() < end) {
    std::erase_if(waiting, [&](int rank) {
      return rank == failed_rank ||
             store_->contains(fmt::format("{}/read/{}", round_, rank));
    });
    if (waiting.empty())
      return;
    std::this_thread::sleep_for(kPause);
  }
}

void StartRendezvous::fail(const Error& cause) noexcept {
  try {
    const std::string failure =
        pack_failure(options_.rank, options_.host, cause.code(), cause.what());
    if (!store_->contains(kFailed))
      store_->set(kFailed, failure);
    if (options_.rank != 0) {
      // This look-up is answered only after the value above has arrived.
      store_->contains(kFailed);
      return;
    }
    ++round_;  // the round that the others wait for
    store_->set(fmt::format("{}/answer", round_), "-" + store_->get(kFailed));
    wait_for_readers();
  } catch (const std::exception&) {
    // The others fail by the timeout; this rank's own error is thrown.
  }
}

}  // namespace brigade
