async fn charge(user: User, key: String, card: Card) -> Result<Receipt, ApiError> {
    __private::for_editor!(
        __private::option::key,
        __private::option::keep,
        __private::option::fingerprint
    );
    let (__outside, __inside) = __private::entry();
    return __private::finishing(
        __outside,
        __private::remembered::<Result<Receipt, ApiError>>(),
        async move {
            if let Some(__value) = __private::returns::<Result<Receipt, ApiError>>() {
                return __value;
            }
            #[allow(clippy::shadow_same)]
            let user = user;
            #[allow(clippy::shadow_same)]
            let key = key;
            #[allow(clippy::shadow_same)]
            let card = card;
            __private::for_editor!(&user.id, &key);
            let __key = __private::key(
                const { &__private::Template::new("charge:{user.id}:{key}") },
                &[
                    __private::text("charge:"),
                    __private::value(&&user.id),
                    __private::text(":"),
                    __private::value(&&key),
                ],
            );
            let __manager = __private::default_manager();
            let __options =
                __private::OnceOptions::keep(::core::time::Duration::from_millis(86400000u64))
                    .fingerprint(&card);
            __inside.acquire_once(__manager, __key, __options).await;
            ({ provider::charge(user, card).await })
        },
        <Result<Receipt, ApiError> as __private::FromLockError>::__conversion(),
        __private::release_now,
    )
    .await;
}
