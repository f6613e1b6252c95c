//! The nodes of one cluster: real processes that a test kills, stops, parts and starts again.

use tools::address::Address;

use super::proxy::{Cut, Proxy};
use super::support::{Folder, Server, Setup, call, eventually, loaded};

/// Some nodes that know each other.
pub struct Fleet {
    flags: String,
    nodes: Vec<Node>,
}

struct Node {
    id: String,
    port: u16,
    flags: String,
    /// The process, while it runs; then only its folder.
    server: Option<Server>,
    folder: Option<Folder>,
    proxy: Option<Proxy>,
}

impl Fleet {
    /// So many nodes with these flags, each with links to all others.
    pub fn start(count: usize, flags: &str) -> Self {
        Self::make(count, flags, false)
    }

    /// The same, and they reach each other through proxies, which can cut.
    pub fn start_behind_proxies(count: usize, flags: &str) -> Self {
        Self::make(count, flags, true)
    }

    fn make(count: usize, flags: &str, proxies: bool) -> Self {
        let nodes = (0..count).map(|_| Node::start(flags, proxies)).collect();
        let this = Self {
            flags: flags.to_owned(),
            nodes,
        };
        for other in &this.nodes[1..] {
            let mut line = format!("CLUSTER MEET 127.0.0.1 {}", other.port);
            if let Some(proxy) = &other.proxy {
                line += &format!(" {}", proxy.port());
            }
            // The log may have to begin first.
            eventually("the node takes part", || {
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                let reply = this.server(0).client().call(&words).expect("it answers");
                reply.text() == Some("OK")
            });
        }
        this.wait_until_whole();
        this
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn server(&self, node: usize) -> &Server {
        self.nodes[node].server.as_ref().expect("the node runs")
    }

    pub fn id(&self, node: usize) -> &str {
        &self.nodes[node].id
    }

    /// Where the clients of these nodes connect, whether they run or not.
    pub fn addresses(&self, nodes: impl IntoIterator<Item = usize>) -> Vec<Address> {
        let address = |node: usize| Address::tcp("127.0.0.1", self.nodes[node].port);
        nodes.into_iter().map(address).collect()
    }

    /// Kills a node, and waits for its end.
    pub fn kill(&mut self, node: usize) {
        self.kill_all(&[node]);
    }

    /// Kills nodes, all at once as far as can be.
    pub fn kill_all(&mut self, nodes: &[usize]) {
        for &node in nodes {
            self.server(node).signal(libc::SIGKILL);
        }
        for &node in nodes {
            let server = self.nodes[node].server.take().expect("the node runs");
            self.nodes[node].folder = Some(server.into_folder());
        }
    }

    /// Starts a node again, in its folder and on its port.
    pub fn start_again(&mut self, node: usize) {
        let flags = self.flags.clone();
        self.start_again_with(node, &flags);
    }

    /// The same with other flags.
    pub fn start_again_with(&mut self, node: usize, flags: &str) {
        let node = &mut self.nodes[node];
        let folder = node.folder.take().expect("the node does not run");
        let setup = Setup::flags(&format!("{flags} {}", node.flags));
        let server = setup.start_at(node.port, folder);
        loaded(&server);
        node.server = Some(server);
    }

    /// The folder of a node that does not run.
    pub fn folder(&self, node: usize) -> &Folder {
        self.nodes[node].folder.as_ref().expect("the node does not run")
    }

    /// Stops a node: it does nothing, and its connections stay.
    pub fn freeze(&self, node: usize) {
        self.server(node).signal(libc::SIGSTOP);
    }

    /// Lets a stopped node go on.
    pub fn thaw(&self, node: usize) {
        self.server(node).signal(libc::SIGCONT);
    }

    /// Cuts what one node says to another; the other way stays.
    pub fn cut(&self, from: usize, to: usize, cut: Cut) {
        let proxy = self.nodes[to].proxy.as_ref().expect("there are proxies");
        proxy.cut(&self.nodes[from].id, cut);
    }

    /// Parts a node from all others.
    pub fn part(&self, node: usize, cut: Cut) {
        for other in (0..self.count()).filter(|&other| other != node) {
            self.cut(node, other, cut);
            self.cut(other, node, cut);
        }
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.nodes
            .iter()
            .filter_map(|node| node.proxy.as_ref())
            .for_each(Proxy::heal);
    }

    /// Waits until every node says that all others can be reached.
    pub fn wait_until_whole(&self) {
        let others = (self.count() - 1).to_string();
        eventually("each node reaches all others", || {
            let reaches = |node| {
                let server = self.server(node);
                // As shard 0 sees it, and as any shard that is asked.
                (0..4).all(|_| server.info("cluster", "cluster_reachable_nodes") == others)
            };
            (0..self.count()).all(reaches)
        });
    }

    /// Waits until these nodes say that another one is failed.
    pub fn wait_until_failed(&self, node: usize, by: &[usize]) {
        let line = format!("{} ", self.id(node));
        eventually("the node is failed", || {
            by.iter().all(|&by| {
                let nodes = text(self.server(by), "CLUSTER NODES");
                let mut of = nodes.lines().filter(|of| of.starts_with(&line));
                of.any(|of| of.contains(" fail "))
            })
        });
    }

    /// A number of INFO on a node.
    pub fn number(&self, node: usize, section: &str, field: &str) -> u64 {
        let text = self.server(node).info(section, field);
        text.parse().unwrap_or_else(|_| panic!("{field} is {text}"))
    }

    /// Whether no node has a job, or an acknowledgement that another one does not know of.
    pub fn is_empty(&self) -> bool {
        (0..self.count()).all(|node| {
            ["registered_jobs", "acked_jobs"]
                .iter()
                .all(|field| self.number(node, "jobs", field) == 0)
        })
    }
}

impl Node {
    fn start(flags: &str, behind_proxy: bool) -> Self {
        let proxy = behind_proxy.then(Proxy::new);
        let announces = proxy.as_ref().map(|proxy| {
            // Where others are told that its bus is.
            format!("--announce-bus-port {}", proxy.port())
        });
        let own = announces.unwrap_or_default();
        let server = Setup::flags(&format!("{flags} {own}")).start();
        loaded(&server);
        let port = server.port();
        if let Some(proxy) = &proxy {
            proxy.lead_to(port + 10_000);
        }
        Self {
            id: text(&server, "CLUSTER MYID"),
            port,
            flags: own,
            server: Some(server),
            folder: None,
            proxy,
        }
    }
}

/// The text that a server answers.
pub fn text(server: &Server, line: &str) -> String {
    let reply = call(&mut server.client(), line);
    reply.text().expect("a text").to_owned()
}
