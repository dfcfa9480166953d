#include "brigade/comm/start/start_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/comm/start/packed_texts.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The fields of a packed RankStart before its facts.
enum Field : size_t { kHost, kAddress, kResolved, kIsLoopback, kProbe, kFacts };

constexpr const char* kSeen = "seen";

// A file that rank 0 makes and the other hosts look for; removed by the
// destructor.
class Probe {
 public:
  // Makes the file in the nearest folder at or above `folder` that exists, so
  // that a refused run makes no folder.
  explicit Probe(const fs::path& folder) {
    std::error_code error;
    fs::path parent = fs::absolute(folder, error).lexically_normal();
    while (parent.has_relative_path() && !fs::is_directory(parent, error))
      parent = parent.parent_path();
    path_ =
        parent / fmt::format(".brigade-start-{}-{}", host_name(), ::getpid());
    if (!std::ofstream(path_))
      throw StorageError(fmt::format(
          "[start] host {} cannot write into '{}'",
          host_name(),
          parent.string()));
  }
  ~Probe() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Whether this host sees rank 0's file. A network file system may answer from a
// cache of the folder; making a new file there refreshes it.
bool is_seen(const fs::path& probe) {
  std::error_code error;
  if (fs::exists(probe, error))
    return true;
  fs::path own = probe;
  own += fmt::format("-{}-{}", host_name(), ::getpid());
  if (!std::ofstream(own))
    return false;
  fs::remove(own, error);
  return fs::exists(probe, error);
}

std::vector<std::string> fields_of(
    const RankStart& start,
    const fs::path& probe) {
  std::vector<std::string> fields{
      start.host,
      start.address.address.empty() ? start.address.interface : start.address.address,
      start.address.resolved,
      start.address.is_loopback ? "1" : "0",
      probe.string()};
  for (const StartFact& fact : start.facts.facts)
    fields.push_back(fact.value);
  return fields;
}

void check_addresses(
    const std::vector<std::vector<std::string>>& ranks,
    const std::set<std::string>& hosts,
    const StoreAddress& store) {
  if (hosts.size() == 1)
    return;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& fields = ranks[rank];
    if (fields[kIsLoopback] != "1")
      continue;
    const std::string why =
        fields[kResolved].empty()
            ? std::string()
            : fmt::format(
                  ", because MASTER_ADDR='{}' resolves to {} there",
                  store.host,
                  fields[kResolved]);
    throw ConfigError(fmt::format(
        "[start] the ranks are on {} hosts, but rank {} on host {} has only "
        "the loopback address {} for its peers{}. Give {} its network address "
        "in /etc/hosts of that host (Debian writes 127.0.1.1 there), or set "
        "MASTER_ADDR to the address of rank 0's host, or set {} to the "
        "network interface",
        hosts.size(),
        rank,
        fields[kHost],
        fields[kAddress],
        why,
        store.host.empty() ? "rank 0's host" : store.host,
        kInterfaceVariable));
  }
}

// The number of entries in a message; more would hide the advice behind them.
constexpr size_t kShownEntries = 8;

using Entries = std::map<std::string, std::string>;

std::string pack_entries(const Entries& entries) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : entries) {
    texts.push_back(name);
    texts.push_back(value);
  }
  return pack_texts(texts);
}

Entries unpack_entries(const std::string& packed) {
  const std::vector<std::string> texts = unpack_texts(packed);
  Entries entries;
  for (size_t i = 0; i + 1 < texts.size(); i += 2)
    entries[texts[i]] = texts[i + 1];
  return entries;
}

// "training.seed is 42 on rank 0 on host a and 7 on rank 1 on host b"; empty
// where no entry differs.
std::string describe_difference(
    const Entries& first,
    const Entries& other,
    const std::string& first_rank,
    const std::string& other_rank) {
  const auto value_in = [](const Entries& entries, const std::string& name) {
    const auto found = entries.find(name);
    return found == entries.end() ? "absent" : found->second;
  };
  std::set<std::string> names;
  for (const Entries* entries : {&first, &other}) {
    for (const auto& [name, value] : *entries)
      names.insert(name);
  }
  std::erase_if(names, [&](const std::string& name) {
    return value_in(first, name) == value_in(other, name);
  });
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == kShownEntries)
      return text + fmt::format("; and {} more", names.size() - kShownEntries);
    text += fmt::format(
        "{}{} is {} on {} and {} on {}",
        text.empty() ? "" : "; ",
        name,
        value_in(first, name),
        first_rank,
        value_in(other, name),
        other_rank);
  }
  return text;
}

// Collective. Throws ConfigError for a fact in which `rank` differs from rank
// 0.
[[noreturn]] void refuse_fact(
    StartRendezvous& rendezvous,
    const std::vector<std::vector<std::string>>& ranks,
    size_t rank,
    const StartFact& fact,
    size_t field) {
  const auto name_of = [&](size_t each) {
    return fmt::format("rank {} on host {}", each, ranks[each][kHost]);
  };
  std::string what;
  // A fact has entries on all ranks or on none. The fact of the program's
  // version has none, because another version may make no exchange here.
  if (!fact.entries.empty()) {
    const std::vector<std::string> entries =
        rendezvous.exchange(pack_entries(fact.entries));
    what = describe_difference(
        unpack_entries(entries[0]),
        unpack_entries(entries[rank]),
        name_of(0),
        name_of(rank));
  }
  if (what.empty())
    what = fmt::format(
        "{} has {}, {} has {}",
        name_of(0),
        ranks[0][field],
        name_of(rank),
        ranks[rank][field]);
  throw ConfigError(fmt::format(
      "[start] {} differs among the ranks: {}; {}",
      fact.name,
      what,
      fact.advice));
}

void check_facts(
    StartRendezvous& rendezvous,
    const std::vector<std::vector<std::string>>& ranks,
    const std::vector<StartFact>& facts) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto& fields = ranks[rank];
    if (fields.size() != ranks[0].size())
      throw ConfigError(fmt::format(
          "[start] rank {} on host {} compares {} values, rank 0 {}: they run "
          "different programs",
          rank,
          fields[kHost],
          fields.size(),
          ranks[0].size()));
    for (size_t i = 0; i < facts.size(); ++i) {
      const size_t field = static_cast<size_t>(kFacts) + i;
      if (fields[field] != ranks[0][field])
        refuse_fact(rendezvous, ranks, rank, facts[i], field);
    }
  }
}

void check_shared_folder(
    const std::vector<std::string>& seen,
    const std::vector<std::string>& hosts,
    const fs::path& probe) {
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] == kSeen)
      continue;
    throw ConfigError(fmt::format(
        "[start] host {} (rank {}) does not see what host {} (rank 0) wrote "
        "into '{}'; all hosts must share the folders of logging.run_dir and "
        "checkpoint.save_dir",
        hosts[rank],
        rank,
        hosts[0],
        probe.parent_path().string()));
  }
}

}  // namespace

std::vector<std::string> agree_on_start(
    StartRendezvous& rendezvous,
    const LaunchEnvironment& environment,
    const RankStart& mine) {
  // Ranks on one machine, by the launcher's count, need no look at the disk.
  std::optional<Probe> probe;
  if (environment.rank == 0 && !mine.facts.shared_folder.empty() &&
      environment.local_world_size != environment.world_size) {
    try {
      probe.emplace(mine.facts.shared_folder);
    } catch (const Error& error) {
      rendezvous.fail(error);
      throw;
    }
  }
  std::vector<std::vector<std::string>> ranks;
  for (const std::string& text : rendezvous.exchange(
           pack_texts(fields_of(mine, probe ? probe->path() : fs::path()))))
    ranks.push_back(unpack_texts(text));
  std::vector<std::string> hosts;
  for (const auto& fields : ranks) {
    if (fields.size() < kFacts)
      throw ConfigError("[start] the ranks run different programs");
    hosts.push_back(fields[kHost]);
  }
  try {
    const std::set<std::string> different(hosts.begin(), hosts.end());
    check_addresses(ranks, different, environment.store);
    check_facts(rendezvous, ranks, mine.facts.facts);
    const fs::path shared = ranks[0][kProbe];
    if (!shared.empty()) {
      const auto seen =
          rendezvous.exchange(is_seen(shared) ? kSeen : "not seen");
      check_shared_folder(seen, hosts, shared);
    }
  } catch (const ConfigError&) {
    rendezvous.wait_for_readers();
    throw;
  }
  return hosts;
}

}  // namespace brigade
