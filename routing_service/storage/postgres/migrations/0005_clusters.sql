-- compatible-from: 1
--
-- One store on several clusters: which clusters belong together, and which one has each tenant.
-- Nothing reads or writes these tables any more; a gateway in front of shards does what they did.
--
-- Each cluster has the identity of the first one in store.clusters_home; NULL = it is a store of its
-- own. The first cluster alone has the rows of clusters and cluster_tenants. A release before this
-- one serves a store of one cluster as before.

ALTER TABLE store ADD COLUMN clusters_home bytea;

CREATE TABLE clusters (
    number integer PRIMARY KEY,
    store_id bytea NOT NULL UNIQUE,
    place text NOT NULL
);

CREATE TABLE cluster_tenants (
    tenant text COLLATE "C" PRIMARY KEY,
    number integer NOT NULL
);
